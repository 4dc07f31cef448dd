"""The guard on real ranks: who stops, does not come, or does something else is named, and all end."""

import os
import re
import signal
import socket
import subprocess

import pytest

from tests.mpi.conftest import PATIENCE_S

pytestmark = [pytest.mark.mpi, pytest.mark.timing]

DEADLINE_S = 2.0
SMALL, LARGE = 1000, 300_000  # of the MPI's own all-reduces the small ones are logged, the large ones written down
HOST = socket.gethostname()
APART = {"OMPI_MCA_osc": "^sm"}  # no shared windows: rows travel as messages, as between nodes


def guarded(mpirun, way, algorithm, count, deadline_s=DEADLINE_S, **more):
    return mpirun(3, ["guarded.py", way, algorithm, str(deadline_s), str(count)], **more)


def told(done):
    """What the ranks say: one of them does."""
    lines = done.stderr.replace("\0", "").splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("ringtrain: ")]
    return lines[first:]


@pytest.mark.parametrize("apart", [{}, APART], ids=["together", "apart"])
@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_a_slow_rank_is_waited_for(mpirun, algorithm, apart):
    done = guarded(mpirun, "is_slow", algorithm, SMALL, deadline_s=20.0, **apart)
    assert (done.returncode, done.stdout) == (0, "done, gap: ''\n"), done.stderr


def test_without_threads_and_shared_memory_it_says_what_it_does_not_see(mpirun, tmp_path):
    few = {"MPI4PY_RC_THREAD_LEVEL": "funneled", **APART}
    given = ["--ops", "reference", "--iterations", 2, "--out", tmp_path / "o"]
    done = mpirun(2, ["-m", "ringtrain", "train", *map(str, given)], **few)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "the guard does not see ranks that share no memory with it: that takes a thread, and this MPI gives" in words
    done = guarded(mpirun, "is_late", "ring", SMALL, **few)
    assert done.returncode == 4
    assert "no progress for 2 s in collective 6, all-reduce of 1,000 float32 by ring (sum)" in done.stderr
    assert "all ranks that are seen here have joined it" in done.stderr
    assert re.search(r"not seen from rank \d: ranks that share no memory", done.stderr)  # of whoever is first to tell


def test_a_sweep_may_be_guarded(mpirun):
    given = ["bench-allreduce", "-b", "1K", "-e", "256K", "-f", "256", "-n", "3", "--algorithm", "mpi,ring", "--guard"]
    done = mpirun(3, ["-m", "ringtrain", *given])
    assert done.returncode == 0, done.stderr
    assert "checked 4 rows, every element twice: 0 wrong" in done.stdout


@pytest.mark.parametrize("algorithm, count", [("ring", SMALL), ("mpi", SMALL), ("mpi", LARGE)])
def test_a_rank_that_does_not_come_is_named(mpirun, algorithm, count):
    done = guarded(mpirun, "is_late", algorithm, count)
    assert done.returncode == 4
    lines = told(done)
    text = f"all-reduce of {count:,} float32 by {algorithm} (sum)"
    assert f"no progress for 2 s in collective 6, {text}, iteration 7: rank 1 ({HOST}) has not joined it" in lines[0]
    assert lines[0].endswith("(its last is collective 5, done, in iteration 7); ranks 0, 2 wait in it")
    assert lines[1] == "the last collectives of every rank:"
    assert lines[2:7] == [f"  {number}  {text}: done on ranks 0, 1, 2" for number in range(1, 6)]
    assert lines[7].startswith(f"  6  {text}: under way on ranks 0, 2") and lines[7].endswith("; not begun on rank 1")


@pytest.mark.parametrize("apart", [{}, APART], ids=["together", "apart"])
@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_a_rank_that_is_stopped_is_named(mpirun, algorithm, apart):
    done = guarded(mpirun, "is_stopped", algorithm, LARGE, **apart)
    assert done.returncode == 4
    line = told(done)[0]
    assert "no progress for 2 s in collective 6, all-reduce of 300,000 float32" in line
    assert f"rank 1 ({HOST}) has not been seen in it (when last seen: " in line
    assert "it has given no sign of life for " in line and line.endswith("ranks 0, 2 wait in it")


@pytest.mark.parametrize("algorithm, count", [("ring", SMALL), ("ring", LARGE), ("mpi", SMALL), ("mpi", LARGE)])
def test_different_sizes_are_named_rank_by_rank(mpirun, algorithm, count):
    done = guarded(mpirun, "has_another_size", algorithm, count)
    assert done.returncode == 1
    assert (
        f"collective 6 is not the same on all ranks: expected, as on ranks 0, 2: all-reduce of {count:,} float32 by "
        f"{algorithm} (sum); got, on rank 1 ({HOST}): all-reduce of {count // 2:,} float32 by {algorithm} (sum)."
    ) in told(done)[0]


@pytest.mark.parametrize("apart", [{}, APART], ids=["together", "apart"])
@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_another_operation_is_named_although_the_bytes_fit(mpirun, algorithm, apart):
    done = guarded(mpirun, "does_another_operation", algorithm, SMALL, **apart)
    assert done.returncode == 1
    assert f"got, on rank 1 ({HOST}): all-reduce of 1,000 float32 by {algorithm} (max)." in told(done)[0]


def test_another_call_is_named(mpirun):
    done = guarded(mpirun, "does_something_else", "mpi", LARGE)
    assert done.returncode == 1
    assert f"got, on rank 1 ({HOST}): gather of values." in told(done)[0]


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_training_ends_when_a_rank_is_stopped(mpirun_process, tmp_path, algorithm):
    given = [
        "--ops",
        "reference",
        "--algorithm",
        algorithm,
        "--epochs",
        1_000_000,
        "--deadline-s",
        6,
        "--out",
        tmp_path / "o",
    ]
    process = mpirun_process(3, ["-m", "ringtrain", "train", *map(str, given)])
    lines = iter(process.stdout)
    assert any(line.startswith("epoch") for line in lines)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    stopped = sorted(map(int, children))[1]
    os.kill(stopped, signal.SIGSTOP)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, rest
    (line,) = re.findall("ringtrain: rank .*", rest)  # the one pipe of all ranks may have begun an epoch's line before
    assert "no progress for 6 s in collective " in line and ", iteration " in line
    assert f"rank 1 ({HOST}) " in line and "it has given no sign of life for" in line
    assert "the last collectives of every rank:" in rest
