"""Children that crash, hang, and talk nonsense; and what is taken out of their environment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringtrain.transport.cuda_aware import trial
from ringtrain.transport.cuda_aware.decision import NO, UNKNOWN, YES, CudaTrial
from ringtrain.transport.cuda_aware.trial import (
    MARK,
    ChildOutcome,
    attempt,
    clean_environment,
    command,
    read_trial,
    run_child,
)
from tests.says import says

pytestmark = pytest.mark.timing

# What mpirun of Open MPI 5, mpiexec of MPICH and srun were seen to tell their ranks, and what users set.
LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "2", "OMPI_MCA_num_procs": "2", "OMPI_MCA_initial_wdir": "/x",
    "OMPI_MCA_PREFIXES": "mca,opal", "OMPI_COMMAND": "python", "OMPI_FILE_LOCATION": "/tmp/x", "PMIX_RANK": "0",
    "PMIX_NAMESPACE": "prterun-vm-1@1", "PMIX_SERVER_URI41": "x", "PRTE_LAUNCHED": "1", "PMI_RANK": "0", "PMI_FD": "9",
    "MPI_LOCALRANKID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "OMPI_MCA_ess": "env",
    "OMPI_MCA_orte_ess_num_procs": "2", "OPAL_USER_PARAMS_GIVEN": "1", "HYDI_CONTROL_FD": "5",
}  # fmt: skip
SETTINGS = {
    "OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_ALLOW_RUN_AS_ROOT": "1", "UCX_TLS": "cuda,sm,self",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PATH": "/bin",
    "LD_LIBRARY_PATH": "/ucx", "OPAL_PREFIX": "/venv", "CUDA_VISIBLE_DEVICES": "1", "MPICH_GPU_SUPPORT_ENABLED": "1",
}  # fmt: skip


def test_what_launchers_say_is_taken_out_and_each_mpi_is_told_to_start_two():
    assert clean_environment(LAUNCHERS | SETTINGS) == SETTINGS
    at = Path("/x/mpirun")
    assert command(at, "Open MPI", ["p"]) == [
        "/x/mpirun", "--host", "localhost:2", "--bind-to", "none", "-n", "2", "p",
    ]  # fmt: skip
    assert command(at, "MPICH", ["p"]) == ["/x/mpirun", "-launcher", "fork", "-n", "2", "p"]


def python(text, limit_s=120.0):
    return run_child([sys.executable, "-c", text], {}, limit_s)


SAY = f"import json; say = lambda **r: print({MARK!r} + json.dumps(r), flush=True)\n"
AT = "say(at='direct messages of 1,000 bytes')\n"
RATES = "say(staged_gbs=12.5, direct_gbs=40.0)\n"


MESSAGES = "direct messages of 1,000 bytes"
FAULT = CudaTrial(NO, says("segmentation fault", MESSAGES))
ENDED = CudaTrial(UNKNOWN, says(0, "ended", "status"))
NO_DRIVER = CudaTrial(UNKNOWN, says("no driver"))
NO_PML = "No components were able to be opened in the pml framework."


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (SAY + AT + RATES, CudaTrial(YES, says("40", "12.5"), 40.0, 12.5)),
        (SAY + "say(device='no driver')", NO_DRIVER),
        # lines of two ranks in one
        (
            SAY + "print('[1] ', end=''); print(end='x'.join(['" + MARK + """{"device": "no driver"}'] * 2))""",
            NO_DRIVER,
        ),
        (SAY + AT + "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", FAULT),
        (
            SAY + AT + "import sys; print('Signal: Segmentation fault (11)\\n---', file=sys.stderr); sys.exit(139)",
            FAULT,
        ),
        (SAY + AT + f"import sys; sys.exit('---\\n{NO_PML}\\n---')", CudaTrial(NO, says(1, NO_PML, MESSAGES))),
        (SAY + "say(wrong='direct messages of 1 bytes')", CudaTrial(NO, says("direct messages of 1 bytes"))),
        (
            SAY + "say(at='staged messages of 1 bytes')\nimport sys; sys.exit(3)",
            CudaTrial(UNKNOWN, says(3, "ended", "status", "staged messages of 1 bytes")),
        ),
        ("print('hello')", ENDED),
        (f"print({MARK!r} + 'not json'); print({MARK!r} + '[1]')", ENDED),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)) * 10)", ENDED),
    ],
)
def test_how_children_end(text, outcome):
    assert read_trial(python(text), 20.0) == outcome


@pytest.fixture
def ready(monkeypatch):
    """What a child runs when it has said all: its limit begins there, however long a Python takes to start."""
    readable, writable = os.pipe()

    class Begun(subprocess.Popen):
        def __init__(self, *args, **how):
            super().__init__(*args, **how, pass_fds=[writable])
            os.close(writable)

        def wait(self, timeout=None):
            os.read(readable, 1)  # at once from the second time on, and where the child has ended
            return super().wait(timeout)

    monkeypatch.setattr(trial.subprocess, "Popen", Begun)
    yield f"import os; os.write({writable}, b'x'); os.close({writable})\n"
    os.close(readable)


@pytest.mark.parametrize("stubborn", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_a_child_that_hangs_is_ended(monkeypatch, ready, stubborn):
    monkeypatch.setattr(trial, "GRACE_S", 0.2)
    outcome = python(stubborn + SAY + AT + ready + "import threading; threading.Event().wait()", limit_s=0.1)
    assert read_trial(outcome, 1.0) == CudaTrial(NO, says("1", MESSAGES))


def test_a_grandchild_that_lives_on_is_not_waited_for(ready):
    """One that is out of the group's reach: it is left to its own clock."""
    other = "import subprocess; other = subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
    outcome = python(SAY + AT + other + "print(other.pid, flush=True)\n" + ready + "other.wait()", limit_s=0.1)
    os.kill(int(outcome.output.split()[-1]), signal.SIGKILL)  # it lives, or this would fail
    assert outcome.status is None and outcome.output.startswith(MARK)


def test_an_mpirun_that_is_not_there_or_nonsense(tmp_path):
    outcome = run_child(["/nonexistent/mpirun"], {}, 1.0)
    assert outcome == ChildOutcome(127, "", "/nonexistent/mpirun: No such file or directory")
    assert attempt(None, "Open MPI", "a:b", [0]).why == says("found", "trial")
    trial_of_none = attempt(Path("/nonexistent/mpirun"), "Open MPI", "a:b", [0])
    assert trial_of_none.answer == UNKNOWN and "/nonexistent/mpirun: No such file" in trial_of_none.why
    stub = tmp_path / "mpirun"
    stub.write_text("#!/bin/sh\necho ringtrain-trial { ; kill -SEGV $$\n")
    stub.chmod(0o755)
    assert attempt(stub, "Open MPI", "a:b", [0]) == CudaTrial(UNKNOWN, says("segmentation", "fault"))
