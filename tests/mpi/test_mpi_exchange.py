"""Real ranks: the same promises as on the loopback, and what happens when a rank fails."""

import re

import pytest

from tests.mpi.conftest import APART
from tests.says import says
from tests.tiers import thorough

pytestmark = [pytest.mark.mpi, pytest.mark.timing]


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4, 5)])
def test_everything_moves(mpirun, ranks):
    done = mpirun(ranks, ["moves.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "12 checks passed\n"
    assert "UCX" not in done.stderr  # its complaint about windows is kept from users


STALLED = ["StalledError: no progress for 0.2 s, waiting for rank", "in star(ranks=3, chunks=1), tag 2"]
FAILED = "TransportError: MPI failed while"


@pytest.mark.parametrize(
    ("ranks", "way", "code", "messages"),
    [
        (3, "is_absent", 4, STALLED),
        (2, "sends_too_much", 1, [f"{FAILED} waiting for rank 1 to send (tag 5): "]),
        (2, "addresses_nobody", 1, [f"{FAILED} preparing a message for rank 99 to receive (tag 1): "]),
    ],
)
def test_an_error_names_the_peer(mpirun, ranks, way, code, messages):
    done = mpirun(ranks, ["fails.py", way])
    assert done.returncode == code and all(message in done.stderr for message in messages)


WITHOUT_MPI = {"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"}
LAUNCHED = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
BY_SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({}, 0, says("rank 0 of 1", "window: True")),
        (WITHOUT_MPI, 0, says("rank 0 of 1", "no MPI", "window: True")),
        ({**WITHOUT_MPI, **LAUNCHED}, 2, says("site", "openmpi")),  # several need one
        (BY_SRUN, 2, says("srun", 4)),  # worlds of one
    ],
)
def test_one_process_needs_no_launcher_and_no_mpi(request, alone, environ, code, words):
    if "MPI4PY_LIBMPI" not in environ:
        request.getfixturevalue("mpirun_command")  # skips the test where there is no MPI
    done = alone(["hello.py"], **environ)
    assert done.returncode == code, done.stderr
    assert words.matches(done.stderr if code else done.stdout) and (code or done.stderr == "")
    assert ("no MPI" in done.stdout) == (environ is WITHOUT_MPI)


def test_no_window_where_shared_memory_is_not_to_be_had(mpirun, tmp_path):
    done = mpirun(2, ["hello.py"], **APART)
    assert done.returncode == 0
    assert done.stdout.count("window: False") == 2
    train = ["-m", "ringtrain", "train", "--iterations", "2", "--algorithm", "mapped", "--out", str(tmp_path / "run")]
    done = mpirun(2, train, **APART)
    assert done.returncode == 0, done.stderr
    assert re.search(says("mapped", "sliced"), done.stdout)
