"""Scripts of PyTorch over ringtrain's communicator, as they are: they reach gloo's losses, and no port is opened."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from ringtrain.cli.python_script import parse_script_command
from ringtrain.errors import StalledError
from tests.mpi.conftest import PATIENCE_S, ROOT, run
from tests.says import says
from tests.tiers import thorough

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi

PROGRAMS = Path(__file__).parent / "programs" / "pytorch"
LISTENS = str(PROGRAMS / "listens.py")
QUIET = {"OMPI_MCA_btl": "self,sm"}  # the TCP of the MPI itself listens
SCRIPTS = ["hooks.py", "ddp.py", "ddp.py as_view", "ddp.py unused", "sharded.py fsdp2", "sharded.py zero", "mesh.py"]
ALONE = "power power_fp16 quantized zero_step zero_interleaved"  # in which gloo hangs, fails or refuses
NEEDS = {"lightning_fit.py": "lightning", "accelerated.py": "accelerate", "trainer.py": "transformers"}


@pytest.fixture
def launched(mpirun):
    """launched(ranks, script and its arguments, options of the launcher, NAME=value...) → CompletedProcess"""

    def start(ranks, line, *options, **more):
        script, *arguments = line.split()
        command = ["-W", "ignore", "-m", "ringtrain.torch", *options]
        return mpirun(ranks, [*command, str(PROGRAMS / script), *arguments], **QUIET, **more)

    return start


def result(done):
    """The JSON that rank 0 printed, and the numbers of sockets that listened."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    losses = re.search(r'\{"losses".*\}', done.stdout)  # torchrun writes the lines of its ranks into one another
    assert losses is not None, done.stdout
    return json.loads(losses[0]), [int(number) for number in re.findall("sockets that listen: (\\d+)", done.stdout)]


@pytest.mark.parametrize("ranks", [2, *thorough(3)])
@pytest.mark.parametrize("script", [*thorough(*SCRIPTS, *NEEDS)])
def test_a_script_reaches_the_losses_of_gloo_and_nothing_listens(mpirun, script, ranks):
    name, *arguments = script.split()
    pytest.importorskip(NEEDS.get(name, "torch"))
    command, path = [LISTENS, str(PROGRAMS / name), *arguments], str(ROOT)  # Lightning imports the real matplotlib
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    gloos, listening = result(run([*torchrun, "--nproc-per-node", str(ranks), *command], PATIENCE_S, PYTHONPATH=path))
    assert max(listening) > 0  # so the count finds them
    for options in ([], ["--sync", "sharded"]) if name in NEEDS else ([],):
        launcher = ["-W", "ignore", "-m", "ringtrain.torch", *options]
        ours, listening = result(mpirun(ranks, [*launcher, *command], PYTHONPATH=path, **QUIET))
        assert listening == [0] * ranks
        assert len(ours["losses"]) >= 8 and ours.keys() == gloos.keys()
        for key, wanted in gloos.items():
            assert ours[key] == pytest.approx(wanted, rel=1e-6, abs=1e-6), key


@pytest.mark.parametrize("cases", ["power join_few join_unused resized built_in_fp16", *thorough(ALONE)])
def test_hooks_for_gradients_leave_all_ranks_the_same_weights(launched, cases):
    """They make collectives in callbacks, resize buckets, or leave a rank without inputs before the others."""
    ends, _ = result(launched(2, f"hooks.py {cases}"))
    for name in cases.split():
        half = len(ends[name]) // 2  # of a rank: its loss, its weights, and perhaps another loss
        assert ends[name][1:7] == ends[name][half + 1 : half + 7], name


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (3, "collects.py"),  # every collective
        (2, "mixes.py cpu:gloo,meta:fake meta"),  # a group with several backends keeps the others
        (2, "moves_buckets.py"),  # buckets are moved once
        *thorough(
            (1, "collects.py"),
            (2, "collects.py"),
            (2, "mixes.py meta:fake,cpu:gloo meta"),
            (2, "mixes.py cuda:fake,cpu:gloo cuda"),
            (2, "moves_buckets.py full"),
            # Groups are made again after a mismatch: ranks that have seen an error wait ten seconds for who ends them.
            (2, "again.py"),
        ),
    ],
)
def test_all_is_well_in_scripts_that_check_themselves(launched, ranks, line):
    done = launched(ranks, line)
    assert (done.returncode, done.stdout) == (0, f"all is well on {ranks} ranks\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("late", 4, r"no progress for 3 s in collective \d+, all-reduce of 1,000 float32 .*: rank 1 \(\S+\) has not"),
        ("backward", 4, r"backward\(\)\n.*\.StalledError: .*all-reduce of 650 float32 .*: rank 1 \(\S+\) has not"),
        *thorough(
            ("hook", 4, r"backward\(\)\n.*\.StalledError: .*all-reduce of 650 float16 .*: rank 1 \(\S+\) has not"),
            ("raise", 1, says("rank 1", "ValueError: of the script")),
            ("exit", 9, says("rank 1", 9)),
            ("interrupt", 130, ""),
            ("kill", 137, "rank 1 .*signal 9"),
            ("shape", 1, r"not the same on all ranks.*, on rank 1 .*1,001 float32"),
            ("own", 1, says("failed", "AVG of bool is not reduced")),
        ),
    ],
)
def test_what_goes_wrong_is_named_and_ends_all_ranks(launched, how, code, text):
    limit_s = 60 if how in ("backward", "hook") else 3  # the former set it when they are under way
    done = launched(2, f"fails.py {how}", "--deadline-s", str(limit_s))
    assert done.returncode == code, done.stderr
    assert re.search(text, done.stdout + done.stderr, re.DOTALL), done.stderr


def test_an_error_of_a_script_is_not_taken_for_one_of_a_future():
    call_order = importlib.import_module("ringtrain.torch.call_order")
    errors = [StalledError("collective 1"), StalledError("collective 12"), AssertionError()]
    futures = [call_order.WorkFuture(None) for _ in errors]
    for future, error in zip(futures, errors, strict=True):
        future.set_exception(error)
    for error in errors:
        quoting = RuntimeError(f"Unable to cast {type(error).__name__}: {error} to Tensor")
        assert call_order.quoted_error(quoting) is error
    for error in (RuntimeError("of the script"), ValueError("AssertionError: ")):
        assert call_order.quoted_error(error) is error
    del futures, future
    assert call_order.quoted_error(quoting) is quoting


@pytest.mark.parametrize("ranks", [3, *thorough(2)])
def test_ranks_that_do_not_come_are_named_after_the_timeout_of_the_group(launched, ranks):
    done = launched(ranks, "waits.py")
    assert "late ranks are named" in done.stdout, done.stdout + done.stderr
    if done.returncode == 4:  # on a busy machine the watchdog's thread is before the one that waits
        assert re.search(r"no progress for 1 s in collective", done.stderr), done.stderr
    else:
        assert "all is well" in done.stdout and done.returncode == 3, done.stdout + done.stderr


@pytest.mark.thorough
def test_one_import_is_enough(mpirun):
    program = str(PROGRAMS / "imports.py")
    done = mpirun(2, [program])
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0, 3.0] False ringtrain\n"), done.stderr
    done = mpirun(2, [program, "fail"])
    assert done.returncode == 1 and "ValueError: of the script" in done.stderr


@pytest.mark.thorough
def test_a_wrong_command_line_is_told_once(mpirun):
    for words in (["none.py"], ["-m", "no.such"]):
        done = mpirun(2, ["-m", "ringtrain.torch", *words])
        assert done.returncode == 2 and done.stderr.count(words[-1]) == 1, done.stderr
    done = mpirun(2, ["-m", "ringtrain.torch", "--help"])
    assert (done.returncode, done.stdout) == (0, parse_script_command(["--help"]) + "\n")
