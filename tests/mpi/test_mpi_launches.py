"""`scripts/bench allreduce`: it starts ranks, and makes a table and a picture of the figures."""

import json
import sys

import pytest

from tests.mpi.conftest import ROOT, run
from tests.tiers import thorough

pytestmark = pytest.mark.mpi
PROGRAM = ROOT / "scripts" / "benchmarks" / "allreduce.py"


@pytest.fixture
def bench(mpirun_command, tmp_path):
    """bench(flags) → CompletedProcess: two ranks, and a picture; its files are in tmp_path"""
    pytest.importorskip("matplotlib")
    launch = " ".join(mpirun_command("{ranks}", [])[:-1])  # up to the interpreter
    command = [sys.executable, str(PROGRAM), "--ranks", "2", "--launch", launch, "--out", str(tmp_path)]
    return lambda flags: run([*command, *flags.split()], 300, PYTHONPATH=str(ROOT))


def test_launches_become_one_table(bench, tmp_path):
    done = bench("--launches 2 -b 1K -e 64K -f 64 -n 3 -w 1")
    assert done.returncode == 0, done.stderr
    merged = json.loads((tmp_path / "allreduce-2-ranks.json").read_text())
    assert [(row["algorithm"].partition(":")[0], row["bytes"]) for row in merged["rows"]] == [
        (name, nbytes) for nbytes in (1024, 65536) for name in ("mpi", "auto", "prepared", "communicator")
    ]
    for row in merged["rows"]:
        assert (row["status"], row["wrong"], row["repeats"]) == ("ok", 0, 6)
        ratios = row["launches"]["speedup"]
        assert len(ratios) == 2 and (row["algorithm"] == "mpi") == (ratios == [None, None])
    assert len(merged["header"]["launches"]) == 2
    text = (tmp_path / "allreduce-2-ranks.md").read_text()
    assert text in done.stdout and text.count("\n| ") == 6
    assert (tmp_path / "allreduce-2-ranks.png").read_bytes().startswith(b"\x89PNG")


def test_a_mistake_that_ranks_find_is_told_once_and_nothing_is_written(bench, tmp_path):
    done = bench("-b 1000G -e 1000G")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("ringtrain: buffers of ") == 1 and "make -e smaller" in done.stderr
    assert "allreduce: launch 1 of 5, 2 ranks, failed: no more are started" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "2,1"), "Invalid value for '--ranks': 1 is not in the range x>=2."),
        # Ranks of tests find no matplotlib.
        (("--launch", sys.executable), "Error: a picture needs matplotlib: pip install"),
        (("--launch", "no-such-mpirun -np {ranks}"), "--launch no-such-mpirun -np {ranks}: there is no such program"),
        *thorough(
            (("--ranks", "two"), "Invalid value for '--ranks': 'two' is not a valid integer"),
            (("--algorithm", "rign"), "unknown algorithm 'rign': "),
            (("--algorithm", "auto,prepared"), "give mpi among --algorithm: all are compared with it"),
            (("-b", "8M", "-e", "1M"), f"begins at {8 << 20:,} bytes and ends at {1 << 20:,}:"),
            (("-f", "0.5"), "-f 0.5: "),
            (("--launch", ""), "--launch : there is no such program"),
            (("--launch", "'mpirun"), "--launch 'mpirun: No closing quotation"),
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_launched(tmp_path, arguments, message):
    done = run([sys.executable, str(PROGRAM), "--out", str(tmp_path), *arguments], 60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
