"""A child process that hands device memory to the MPI, so that an MPI that cannot take it crashes only the child.

The child has two ranks on this machine, started by an mpirun of their own. Its environment lacks the launcher's
variables: a nested mpirun would otherwise take itself for a part of this job.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from ringtrain.child import child_command
from ringtrain.transport.cuda_aware.decision import NO, UNKNOWN, YES, CudaTrial

LIMIT_S = 60.0  # CuPy takes seconds to load, a device to wake, an MPI to look for its networks
GRACE_S = 5.0
MARK = "ringtrain-trial "  # begins the lines that are meant
# Variables that launchers set for their processes, and those among them that are the user's settings.
TOLD = (
    "OMPI_", "OPAL_USER_PARAMS", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "HYDRA_", "HYDI_", "MV2_COMM_WORLD_", "SLURM_",
    "PALS_", "PBS_", "LSB_", "FLUX_",
)  # fmt: skip
SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "OMPI_ALLOW_RUN_AS_ROOT", "PMIX_PREFIX", "PRTE_PREFIX")
NOT_SETTINGS = (
    "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir", "OMPI_MCA_cpu_type", "OMPI_MCA_PREFIXES", "OMPI_MCA_ess",
    "OMPI_MCA_orte_", "OMPI_MCA_pmix",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """The end of a child: its status (below 0: the signal; None: it was ended after its time), and its output."""

    status: int | None
    output: str
    errors: str = ""


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the launcher's variables."""
    settings = {name for name in environ if name.startswith(SETTINGS) and not name.startswith(NOT_SETTINGS)}
    return {name: value for name, value in environ.items() if not name.startswith(TOLD) or name in settings}


def command(launcher: Path, vendor: str, program: Sequence[str]) -> list[str]:
    """Return the command line of two ranks on this machine, for any number of slots, without asking a scheduler."""
    if vendor == "Open MPI":
        options = ["--host", "localhost:2", "--bind-to", "none"]
    else:  # MPICH and its kin: hydra
        options = ["-launcher", "fork"]
    return [str(launcher), *options, "-n", "2", *program]


def program(maker: str, devices: Sequence[int], seconds: float) -> list[str]:
    """Return the command line of the child: :mod:`ringtrain.transport.cuda_probe`."""
    numbers = ",".join(map(str, devices))
    return child_command("ringtrain.transport.cuda_probe", maker, numbers, f"{seconds:g}")


def attempt(launcher: Path | None, vendor: str, maker: str, devices: Sequence[int]) -> CudaTrial:
    """Run a child and return its result.

    maker:   "module:name" of a function that makes a Runtime from a device's number
    devices: device numbers of the first two ranks
    """
    if launcher is None:
        return CudaTrial(UNKNOWN, "no mpirun was found to start a trial with")
    line = command(launcher, vendor, program(maker, devices, LIMIT_S + GRACE_S))
    return read_trial(run_child(line, clean_environment(os.environ), LIMIT_S), LIMIT_S)


def run_child(line: Sequence[str], environ: Mapping[str, str], limit_s: float) -> ChildOutcome:
    """Run the child to its end, or end it after ``limit_s`` and a few seconds more."""
    # Files: a pipe would be held open by processes that outlive the child.
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=dict(environ), start_new_session=True
            )
        except OSError as error:
            return ChildOutcome(127, "", f"{line[0]}: {error.strerror}")
        status = _status(process, limit_s)
        return ChildOutcome(status, _text(output), _text(errors))


def _status(process: subprocess.Popen, limit_s: float) -> int | None:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    # By a signal that mpirun passes on, then by one that no process survives. The ranks also end by their own alarm.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            break
    return None


def _text(file) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────
def read_trial(outcome: ChildOutcome, limit_s: float) -> CudaTrial:
    lines = (_record(line) for line in outcome.output.splitlines() if MARK in line)
    last: dict = next(filter(None, reversed(list(lines))), {})
    if "device" in last:
        return CudaTrial(UNKNOWN, f"no device: {last['device']}")
    if "direct_gbs" in last and "staged_gbs" in last:
        trial = CudaTrial(YES, "", float(last["direct_gbs"]), float(last["staged_gbs"]))
        return replace(trial, why=f"a trial moved device memory both ways: {trial.rates}")
    if "wrong" in last:
        return CudaTrial(NO, f"a trial got wrong values from {last['wrong']}")
    ending = _ending(outcome, limit_s)
    if "at" not in last:
        return CudaTrial(UNKNOWN, f"{ending} before its first message")
    fault = NO if str(last["at"]).startswith("direct") else UNKNOWN
    return CudaTrial(fault, f"{ending} in {last['at']}")


def _record(line: str) -> dict | None:
    """Return the record in a line. mpirun may put words before a rank's line, and another rank's line behind it."""
    try:
        record, _ = json.JSONDecoder().raw_decode(line, line.index(MARK) + len(MARK))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _ending(outcome: ChildOutcome, limit_s: float) -> str:
    if outcome.status is None:
        return f"a trial hung: it did not end within {limit_s:g} s"
    if outcome.status in (-signal.SIGSEGV, 128 + signal.SIGSEGV) or "Segmentation fault" in outcome.errors:
        return "a trial ended by a segmentation fault"
    said = _last_words(outcome.errors)
    return f"a trial ended with status {outcome.status}" + (f" ({said})" if said else "")


def _last_words(errors: str) -> str:
    """Return the last line with a text: inside a frame of dashes or equal signs, the last line of the frame."""
    lines = [line.strip() for line in errors.splitlines() if line.strip(" -=*\t")]
    return lines[-1][:200] if lines else ""
