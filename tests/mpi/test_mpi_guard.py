"""The guard on real ranks: who stops, does not come, or does something else is named, and all end."""

import os
import re
import signal
import socket

import pytest
from test_mpi_train import EPOCHS, ranks_of

from tests.mpi.conftest import APART, PATIENCE_S
from tests.says import says
from tests.tiers import thorough

pytestmark = [pytest.mark.mpi, pytest.mark.timing]

SMALL, LARGE = 1000, 300_000  # the MPI sends the small ones at once, and asks first for the large ones
HOST = socket.gethostname()
ROWS = {"together": {}, "apart": APART}
# Each test has one daily case; together these have both algorithms, both sizes and both ways of the rows.
PLACES = [(algorithm, rows) for algorithm in ("ring", "mpi") for rows in ROWS]


def one_daily(*case):
    return [case, *thorough(*(other for other in PLACES if other != case))]


def all_reduce(count, algorithm, op="sum"):
    return says("all-reduce", count, "float32", algorithm, op)


@pytest.fixture
def guarded(mpirun):
    """guarded(way, algorithm, count, exit code) → the lines from the first report on, or the output"""

    def start(way, algorithm, count, code, deadline_s=2.0, most=1, **more):
        done = mpirun(3, ["guarded.py", way, algorithm, str(deadline_s), str(count)], **more)
        assert done.returncode == code, done.stderr
        lines = done.stderr.replace("\0", "").splitlines()
        firsts = [i for i, line in enumerate(lines) if line.startswith("ringtrain: ")]
        assert (code != 0) <= len(firsts) <= (code != 0) * most
        return lines[firsts[0] :] if code else done.stdout

    return start


@pytest.mark.parametrize("algorithm, rows", one_daily("ring", "together"))
def test_a_slow_rank_is_waited_for(guarded, algorithm, rows):
    assert guarded("is_slow", algorithm, SMALL, 0, 20.0, **ROWS[rows]) == "done, gap: ''\n"


def test_without_threads_and_shared_memory_it_says_what_it_does_not_see(mpirun, guarded, tmp_path):
    few, gap = {"MPI4PY_RC_THREAD_LEVEL": "funneled", **APART}, says("thread", "level")
    flags = ["--ops", "reference", "--iterations", "2", "--out", str(tmp_path / "o")]
    done = mpirun(2, ["-m", "ringtrain", "train", *flags], **few)
    assert done.returncode == 0, done.stderr
    assert re.search("the guard does not see " + gap, " ".join(done.stdout.split()))
    text = "\n".join(guarded("is_late", "ring", SMALL, 4, most=3, **few))
    assert says(says("2", "collective 6", all_reduce(1000, "ring")), "seen", "joined").matches(text)
    assert re.search(says("seen", "from") + gap, text)  # of the first rank to report


def test_a_sweep_may_be_guarded(mpirun):
    flags = "bench-allreduce -b 1K -e 256K -f 256 -n 3 --algorithm mpi,ring --check-collectives"
    done = mpirun(3, ["-m", "ringtrain", *flags.split()])
    assert done.returncode == 0, done.stderr
    assert "checked 4 rows, every element twice: 0 wrong" in done.stdout


@pytest.mark.parametrize("algorithm, count", [("mpi", LARGE), *thorough(("ring", SMALL), ("mpi", SMALL))])
def test_a_rank_that_does_not_come_is_named(guarded, algorithm, count):
    lines, text = guarded("is_late", algorithm, count, 4), all_reduce(count, algorithm)
    late = says(f"rank 1 ({HOST})", says(5, "collective", "done"), says(7, "in", "iteration"))
    assert says("2", 6, text, 7, late, "wait in", "ranks 0, 2").matches(lines[0])
    assert lines[1] == says("last", "collectives")
    assert lines[2:7] == [says(number, text, "ranks 0, 1, 2") for number in range(1, 6)]
    assert says(6, text, "ranks 0, 2", "not begun on rank 1").matches(lines[7])


@pytest.mark.parametrize("algorithm, rows", one_daily("ring", "apart"))
def test_a_rank_that_is_stopped_is_named(guarded, algorithm, rows):
    line = guarded("is_stopped", algorithm, LARGE, 4, **ROWS[rows])[0]
    assert says("2", "collective 6", all_reduce(LARGE, algorithm), f"rank 1 ({HOST})", "ranks 0, 2").matches(line)
    assert says("when", "seen", "sign", "life").matches(line)


SIZES = [
    ("has_another_size", algorithm, count, "together") for algorithm in ("mpi", "ring") for count in (SMALL, LARGE)
]
OTHERS = [
    *(("does_another_operation", algorithm, SMALL, rows) for algorithm, rows in PLACES),
    ("does_something_else", "mpi", LARGE, "together"),
]


@pytest.mark.parametrize("way, algorithm, count, rows", [SIZES[0], *thorough(*SIZES[1:], *OTHERS)])
def test_different_calls_are_named_rank_by_rank(guarded, way, algorithm, count, rows):
    other = {
        "has_another_size": all_reduce(count // 2, algorithm),
        "does_another_operation": all_reduce(count, algorithm, "max"),
        "does_something_else": says("gather", "values"),
    }[way]
    line = guarded(way, algorithm, count, 1, **ROWS[rows])[0]
    assert says(6, "ranks 0, 2", all_reduce(count, algorithm), says(f"rank 1 ({HOST})", other)).matches(line)


@pytest.mark.parametrize("algorithm", ["ring", *thorough("mpi")])
def test_training_ends_when_a_rank_is_stopped(mpirun_process, tmp_path, algorithm):
    flags = ["--ops", "reference", "--algorithm", algorithm, "--epochs", EPOCHS, "--deadline-s", 6]
    process = mpirun_process(3, ["-m", "ringtrain", "train", *map(str, [*flags, "--out", tmp_path / "o"])])
    assert any(line.startswith("epoch") for line in iter(process.stdout))
    os.kill(sorted(ranks_of(process))[1], signal.SIGSTOP)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, rest
    (line,) = re.findall("ringtrain: rank .*", rest)  # the one pipe of all ranks may have begun an epoch's line before
    assert says("6", "collective ", f"rank 1 ({HOST}) ", "sign", "life").matches(line) and ", iteration " in line
    assert says("last", "collectives").matches(rest)


def test_rows_of_other_nodes_travel_as_changes(mpirun):
    done = mpirun(2, ["relayed_rows.py"])
    assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stderr
