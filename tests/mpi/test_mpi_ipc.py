"""Memory of devices mapped by real processes: each has a device that is not there, and names its memory to others."""

from pathlib import Path

import pytest

from tests.fakes import host_kernels
from tests.tiers import thorough

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2)])
def test_ranks_map_one_anothers_devices(mpirun, ranks):
    done = mpirun(ranks, ["maps_devices.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 checks passed\n"


@pytest.mark.skipif(host_kernels.compiler() is None, reason="g++ is not installed")
def test_by_the_kernels_of_a_device(mpirun):
    done = mpirun(2, ["maps_devices.py", "kernels"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 checks passed\n"


def test_a_killed_rank_leaves_nothing(mpirun):
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    done = mpirun(3, ["maps_devices.py", "killed"])
    assert done.returncode != 0
    left = (set(shared.iterdir()) if shared.is_dir() else set()) - before
    assert not [path for path in left if "ringtrain" in path.name]
    assert not [line for line in _open_files() if "ringtrain-fake-device" in line]


def _open_files():
    """Of processes of that program: others here may be testing, too."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"maps_devices.py" in (process / "cmdline").read_bytes():
                yield from (str(link.readlink()) for link in (process / "fd").iterdir())
        except OSError:
            continue
