import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
NAMED = {path.name: str(path) for path in PROGRAMS.glob("*.py")}
PATIENCE_S = 300.0  # only a failure waits for it: nothing here is told by how long it takes
UNDRAWN = PROGRAMS / "undrawn"  # on the path of ranks: runs draw no curves
# For ranks without shared memory, as those of several nodes are: rows, and all else, travel as messages.
APART = {"PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS / "apart", UNDRAWN, ROOT)))}
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",  # without these two, UCX and OFI look for hardware for a second
    "OMPI_MCA_btl": "self,sm,tcp",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}

NET = """
summary = "for tests"
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "conv", kind = "Conv2D", channels = 6, kernel = 3, pad = 1 },
  { name = "relu", kind = "ReLU" },
  { name = "pool", kind = "MaxPool", kernel = 2, stride = 2 },
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 60
lr = 0.02
momentum = 0.9
"""

# Open MPI names a folder by mpirun's process number, and does not start where one that was killed has left that.
SESSIONS = tempfile.TemporaryDirectory(prefix="ringtrain-tests-", ignore_cleanup_errors=True)


def environment(**more) -> dict:
    """This process's environment, with what ranks need."""
    path = os.pathsep.join(filter(None, [str(UNDRAWN), str(ROOT), os.environ.get("PYTHONPATH")]))
    sessions = {"PRTE_MCA_prte_tmpdir_base": tempfile.mkdtemp(dir=SESSIONS.name)}
    return {**os.environ, **ENVIRONMENT, **sessions, "PYTHONPATH": path, **more}


def in_python(arguments) -> list[str]:
    return [sys.executable, *(NAMED.get(str(each), str(each)) for each in arguments)]


def run(command, timeout, **more) -> subprocess.CompletedProcess:
    """Run to the end, or fail the test after ``timeout`` seconds, all its processes gone."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment(**more))
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=20)
        pytest.fail(f"{' '.join(command)} was not done after {timeout} s:\n{out[-2000:]}\n{err[-2000:]}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def find_mpirun() -> str:
    """Skips the test where there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    return program or pytest.skip("no mpirun: pip install 'ringtrain[mpi]', or load an MPI")


@pytest.fixture(scope="session")
def mpirun_command():
    """mpirun_command(ranks, arguments of python) → a command line. A program of tests/mpi/programs goes by its name."""
    program = find_mpirun()

    def command(ranks: int, arguments) -> list[str]:
        return [program, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *in_python(arguments)]

    return command


@pytest.fixture(scope="session")
def mpirun(mpirun_command):
    """mpirun(ranks, arguments of python, timeout) → CompletedProcess."""

    def start(ranks: int, arguments, timeout: float = PATIENCE_S, **more) -> subprocess.CompletedProcess:
        return run(mpirun_command(ranks, arguments), timeout, **more)

    return start


@pytest.fixture
def mpirun_process(mpirun_command):
    """mpirun_process(ranks, arguments of python) → a running Popen, its output one stream; ended with the test."""
    started = []

    def start(ranks: int, arguments) -> subprocess.Popen:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(mpirun_command(ranks, arguments), **pipe, cwd=ROOT, env=environment()))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def alone():
    """alone(arguments of python, timeout, NAME=value...) → CompletedProcess, one process without mpirun."""

    def start(arguments, timeout: float = PATIENCE_S, **more) -> subprocess.CompletedProcess:
        return run(in_python(arguments), timeout, **more)

    return start


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(NET)
    return path
