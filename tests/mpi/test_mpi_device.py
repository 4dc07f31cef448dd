"""Device memory over a real MPI, by both ways, the child that tries them, and memory that others map. The device is
host memory that NumPy may not read, and any MPI may: to it every MPI is aware."""

import re
from pathlib import Path

import pytest

from tests.fakes import host_kernels
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi
SHARED = Path("/dev/shm")


@pytest.mark.parametrize("ranks", [3, *thorough(2)])
def test_device_memory_moves(mpirun, ranks):
    done = mpirun(ranks, ["device_moves.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 checks passed\nTrue\n"


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        ("aware", (" yes ", " GB/s direct, ", " GB/s staged)")),
        *thorough(("absent", ("staged unknown ", "device 0 is not there"))),
    ],
)
def test_a_child_tries_first(mpirun, maker, words):
    """From ranks of an mpirun, whose words to them the child must not hear."""
    done = mpirun(2, ["tries.py", maker, "auto"])
    assert done.returncode == 0, done.stderr
    assert all(each in done.stdout for each in words) and done.stderr == "", done.stdout


def test_the_crash_of_a_child_is_its_own_and_direct_is_refused(mpirun):
    done = mpirun(2, ["tries.py", "unaware", "direct"])
    assert done.returncode == 2 and done.stdout == ""
    assert re.search("ringtrain: " + says("--mpi-cuda"), done.stderr)
    assert re.search(says("direct messages of 1 bytes"), done.stderr)


@pytest.mark.parametrize(("ranks", "how"), [(3, "numpy"), (2, "kernels"), *thorough((1, "numpy"), (2, "numpy"))])
def test_ranks_map_one_anothers_devices(mpirun, ranks, how):
    """By NumPy, and by the kernels of a device."""
    if how == "kernels" and host_kernels.compiler() is None:
        pytest.skip("g++ is not installed")
    done = mpirun(ranks, ["maps_devices.py", how])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 checks passed\n"


def test_a_killed_rank_leaves_nothing(mpirun):
    before = set(SHARED.glob("*"))
    assert mpirun(3, ["maps_devices.py", "killed"]).returncode != 0
    assert not [path for path in set(SHARED.glob("*")) - before if "ringtrain" in path.name]
    assert not [line for line in _open_files() if "ringtrain-fake-device" in line]


def _open_files():
    """Of processes of that program: others may be testing, too."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"maps_devices.py" in (process / "cmdline").read_bytes():
                yield from (str(link.readlink()) for link in (process / "fd").iterdir())
        except OSError:
            continue
