"""The command line that starts ranks from a single process, and the run of it.

::
    mpirun on PATH, or beside this Python   mpirun -np N; Open MPI's is told to oversubscribe beyond the cores here
    none, in a Slurm allocation             srun -n N
    --launcher "TEXT"                       its words, with the number in place of {ranks}

In a Slurm allocation mpirun knows the hosts and slots of the job, and is told nothing about cores.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ringtrain.errors import UsageError
from ringtrain.storage.files import open_nofollow
from ringtrain.transport.launch_environment import read_launch

PLACE = "{ranks}"
ALLOCATION = "SLURM_JOB_ID"
BEYOND_CORES = ("--oversubscribe", "--bind-to", "none")
OPEN_MPI = ("Open MPI", "OpenRTE", "PRRTE")


def find_launcher(asked: str | None, environ: Mapping[str, str], command: str = "scale") -> Callable[[int], list[str]]:
    """Return a function that gives the words of the launcher for a number of ranks, to a command of ringtrain. Raises
    UsageError."""
    launch = read_launch(environ)
    if launch.size > 1 or launch.by in ("mpirun", "mpiexec"):
        raise UsageError(f"ringtrain {command} starts the ranks itself: run it without {launch.by}")
    if asked is not None:
        return _from_template(asked)
    beside = shutil.which(str(Path(sys.executable).with_name("mpirun")))
    mpirun = shutil.which("mpirun", path=environ.get("PATH")) or beside
    if mpirun is None and ALLOCATION in environ and shutil.which("srun", path=environ.get("PATH")):
        return lambda ranks: ["srun", "-n", str(ranks)]
    if mpirun is None:
        raise UsageError("no mpirun is on PATH: pip install 'ringtrain[mpi]', load the site's MPI, or give --launcher")
    cores = None if ALLOCATION in environ or not _is_open_mpi(mpirun) else len(os.sched_getaffinity(0))
    return lambda ranks: [mpirun, "-np", str(ranks), *(BEYOND_CORES if cores and ranks > cores else ())]


def _from_template(asked: str) -> Callable[[int], list[str]]:
    try:
        words = shlex.split(asked)
    except ValueError as error:
        raise UsageError(f"--launcher {asked!r} is no command ({error})") from None
    if PLACE not in asked:
        raise UsageError(f"--launcher {asked!r} has no {PLACE}, the place of the number of ranks")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--launcher {asked!r}: there is no program {words[0]}")
    return lambda ranks: [word.replace(PLACE, str(ranks)) for word in words]


def _is_open_mpi(mpirun: str) -> bool:
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, errors="replace")
    return any(name in done.stdout for name in OPEN_MPI)


def run_to_file(words: Sequence[str], output: Path) -> int:
    """Run a command with its output in a file, which is no link, and return its exit status. An error while it runs, as
    of a signal, ends the command too."""
    with open(output, "wb", opener=open_nofollow) as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
