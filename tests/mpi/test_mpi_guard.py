"""The guard on real ranks: who stops, does not come, or does something else is named, and all end."""

import os
import re
import signal
import socket

import pytest
from test_mpi_train import EPOCHS, ranks_of

from tests.mpi.conftest import PATIENCE_S
from tests.says import says
from tests.tiers import thorough

pytestmark = [pytest.mark.mpi, pytest.mark.timing]

DEADLINE_S = 2.0
SMALL, LARGE = 1000, 300_000  # the MPI sends the small ones at once, and asks first for the large ones
HOST = socket.gethostname()
APART = {"OMPI_MCA_osc": "^sm"}  # no shared windows: rows travel as messages, as between nodes
ROWS = {"together": {}, "apart": APART}
# Each test has one daily case; together these have both algorithms, both sizes and both ways of the rows.
PLACES = [(algorithm, rows) for algorithm in ("ring", "mpi") for rows in ROWS]


def one_daily(*case):
    return [case, *thorough(*(other for other in PLACES if other != case))]


def all_reduce(count, algorithm, op="sum"):
    return says("all-reduce", count, "float32", algorithm, op)


def guarded(mpirun, way, algorithm, count, deadline_s=DEADLINE_S, **more):
    return mpirun(3, ["guarded.py", way, algorithm, str(deadline_s), str(count)], **more)


def told(done):
    """What the ranks say: one of them does."""
    lines = done.stderr.replace("\0", "").splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("ringtrain: ")]
    return lines[first:]


@pytest.mark.parametrize("algorithm, rows", one_daily("ring", "together"))
def test_a_slow_rank_is_waited_for(mpirun, algorithm, rows):
    done = guarded(mpirun, "is_slow", algorithm, SMALL, deadline_s=20.0, **ROWS[rows])
    assert (done.returncode, done.stdout) == (0, "done, gap: ''\n"), done.stderr


def test_without_threads_and_shared_memory_it_says_what_it_does_not_see(mpirun, tmp_path):
    few = {"MPI4PY_RC_THREAD_LEVEL": "funneled", **APART}
    given = ["--ops", "reference", "--iterations", 2, "--out", tmp_path / "o"]
    done = mpirun(2, ["-m", "ringtrain", "train", *map(str, given)], **few)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    gap = says("thread", "level")
    assert re.search("the guard does not see " + gap, words)
    done = guarded(mpirun, "is_late", "ring", SMALL, **few)
    assert done.returncode == 4
    late = says("2", "collective 6", all_reduce(1000, "ring"))
    assert says(late, "seen", "joined").matches(done.stderr)
    assert re.search(says("seen", "from") + gap, done.stderr)  # of the first rank to report


def test_a_sweep_may_be_guarded(mpirun):
    given = "bench-allreduce -b 1K -e 256K -f 256 -n 3 --algorithm mpi,ring --check-collectives"
    done = mpirun(3, ["-m", "ringtrain", *given.split()])
    assert done.returncode == 0, done.stderr
    assert "checked 4 rows, every element twice: 0 wrong" in done.stdout


@pytest.mark.parametrize("algorithm, count", [("mpi", LARGE), *thorough(("ring", SMALL), ("mpi", SMALL))])
def test_a_rank_that_does_not_come_is_named(mpirun, algorithm, count):
    done = guarded(mpirun, "is_late", algorithm, count)
    assert done.returncode == 4
    lines = told(done)
    text = all_reduce(count, algorithm)
    last = says(5, "collective", "done") + says(7, "in", "iteration")
    late = says(f"rank 1 ({HOST})", last)
    waiting = says(late, "wait in", "ranks 0, 2")
    stalled = says(6, text, 7, waiting)
    assert says("2", stalled).matches(lines[0])
    assert lines[1] == says("last", "collectives")
    done_on = says(text, "ranks 0, 1, 2")
    assert lines[2:7] == [says(number, done_on) for number in range(1, 6)]
    under_way = says(text, "ranks 0, 2")
    assert says(6, under_way).matches(lines[7])
    assert says("not begun on rank 1").matches(lines[7])


@pytest.mark.parametrize("algorithm, rows", one_daily("ring", "apart"))
def test_a_rank_that_is_stopped_is_named(mpirun, algorithm, rows):
    done = guarded(mpirun, "is_stopped", algorithm, LARGE, **ROWS[rows])
    assert done.returncode == 4
    line = told(done)[0]
    assert says("2", "collective 6", all_reduce(LARGE, algorithm)).matches(line)
    assert re.search(says(f"rank 1 ({HOST})"), line)
    assert re.search(says("when", "seen"), line) and re.search(says("sign", "life"), line)
    assert says("ranks 0, 2").matches(line)


SIZES = [
    ("has_another_size", algorithm, count, "together") for algorithm in ("mpi", "ring") for count in (SMALL, LARGE)
]
OTHERS = [
    *(("does_another_operation", algorithm, SMALL, rows) for algorithm, rows in PLACES),
    ("does_something_else", "mpi", LARGE, "together"),
]


@pytest.mark.parametrize("way, algorithm, count, rows", [SIZES[0], *thorough(*SIZES[1:], *OTHERS)])
def test_different_calls_are_named_rank_by_rank(mpirun, way, algorithm, count, rows):
    done = guarded(mpirun, way, algorithm, count, **ROWS[rows])
    assert done.returncode == 1
    expected = all_reduce(count, algorithm)
    other = {
        "has_another_size": all_reduce(count // 2, algorithm),
        "does_another_operation": all_reduce(count, algorithm, "max"),
        "does_something_else": says("gather", "values"),
    }[way]
    others = says(f"rank 1 ({HOST})", other)
    assert says(6, "ranks 0, 2", expected, others).matches(told(done)[0])


@pytest.mark.parametrize("algorithm", ["ring", *thorough("mpi")])
def test_training_ends_when_a_rank_is_stopped(mpirun_process, tmp_path, algorithm):
    given = ["--ops", "reference", "--algorithm", algorithm, "--epochs", EPOCHS, "--deadline-s", 6]
    given = [*given, "--out", tmp_path / "o"]
    process = mpirun_process(3, ["-m", "ringtrain", "train", *map(str, given)])
    lines = iter(process.stdout)
    assert any(line.startswith("epoch") for line in lines)
    os.kill(sorted(ranks_of(process))[1], signal.SIGSTOP)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, rest
    (line,) = re.findall("ringtrain: rank .*", rest)  # the one pipe of all ranks may have begun an epoch's line before
    assert re.search(says("6", "collective "), line) and ", iteration " in line
    assert f"rank 1 ({HOST}) " in line and re.search(says("sign", "life"), line)
    assert says("last", "collectives").matches(rest)
