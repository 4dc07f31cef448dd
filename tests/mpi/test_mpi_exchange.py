"""Real ranks: the same promises as on the loopback, and what happens when a rank fails."""

import re

import pytest

from tests.says import says
from tests.tiers import thorough

pytestmark = [pytest.mark.mpi, pytest.mark.timing]


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4, 5)])
def test_everything_moves(mpirun, ranks):
    done = mpirun(ranks, ["moves.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "13 checks passed\n"
    assert "UCX" not in done.stderr  # its complaint about windows is kept from users


def test_an_absent_rank_is_named_by_those_who_wait(mpirun):
    done = mpirun(3, ["fails.py", "is_absent"])
    assert done.returncode == 4
    assert "StalledError: no progress for 0.2 s, waiting for rank" in done.stderr
    assert "in star(ranks=3, chunks=1), tag 2" in done.stderr


def test_an_error_of_the_mpi_names_the_peer(mpirun):
    done = mpirun(2, ["fails.py", "sends_too_much"])
    assert done.returncode == 1
    assert "TransportError: MPI failed while waiting for rank 1 to send (tag 5): " in done.stderr
    done = mpirun(2, ["fails.py", "addresses_nobody"])
    assert done.returncode == 1
    assert "TransportError: MPI failed while preparing a message for rank 99 to receive (tag 1): " in done.stderr


def test_one_process_needs_no_launcher(mpirun, alone):
    done = alone(["hello.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank 0 of 1, ") and done.stdout.endswith("window: True\n")
    assert "no MPI" not in done.stdout


def test_one_process_needs_no_mpi(alone):
    done = alone(["hello.py"], MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == says("rank 0 of 1", "MPI", "window: True")


def test_several_processes_without_an_mpi_are_told_how_to_get_one(alone):
    launched = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    done = alone(["hello.py"], MPI4PY_LIBMPI="/nonexistent/libmpi.so", **launched)
    assert done.returncode == 2
    assert says("site", "openmpi").matches(done.stderr)


def test_worlds_of_one_are_noticed(mpirun, alone):
    done = alone(["hello.py"], SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="1", SLURM_LOCALID="1")
    assert done.returncode == 2
    assert says("srun", 4).matches(done.stderr)


def test_no_window_where_shared_memory_is_not_to_be_had(mpirun, tmp_path):
    done = mpirun(2, ["hello.py"], OMPI_MCA_osc="^sm")
    assert done.returncode == 0
    if "Open MPI" not in done.stdout:
        pytest.skip("only Open MPI can be told to go without shared windows")
    assert done.stdout.count("window: False") == 2
    train = ["-m", "ringtrain", "train", "--iterations", "2", "--algorithm", "mapped", "--out", str(tmp_path / "run")]
    done = mpirun(2, train, OMPI_MCA_osc="^sm")
    assert done.returncode == 0, done.stderr
    assert re.search(says("mapped", "sliced"), done.stdout)
