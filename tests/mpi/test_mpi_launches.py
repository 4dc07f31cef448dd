"""`scripts/bench allreduce`: it starts ranks, and makes a table and a picture of the figures."""

import json
import sys

import pytest

from tests.mpi.conftest import ROOT, run
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi
PROGRAM = ROOT / "scripts" / "benchmarks" / "allreduce.py"


def test_launches_become_one_table(mpirun_command, tmp_path):
    pytest.importorskip("matplotlib")
    launch = " ".join(mpirun_command("{ranks}", [])[:-1])  # up to the interpreter
    out = tmp_path / "out"
    asked = ["--launches", "2", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "64", "-n", "3", "-w", "1"]
    command = [sys.executable, str(PROGRAM), *asked, "--launch", launch, "--out", str(out)]
    done = run(command, 300, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    merged = json.loads((out / "allreduce-2-ranks.json").read_text())
    assert [(row["algorithm"].partition(":")[0], row["bytes"]) for row in merged["rows"]] == [
        (name, nbytes) for nbytes in (1024, 65536) for name in ("mpi", "auto", "prepared", "communicator")
    ]
    for row in merged["rows"]:
        assert (row["status"], row["wrong"], row["repeats"]) == ("ok", 0, 6)
        ratios = row["launches"]["speedup"]
        assert len(ratios) == 2 and (row["algorithm"] == "mpi") == (ratios == [None, None])
    assert len(merged["header"]["launches"]) == 2 and merged["header"]["protocol"]["fresh"] is True
    text = (out / "allreduce-2-ranks.md").read_text()
    assert text in done.stdout and text.count("\n| ") == 6
    assert (out / "allreduce-2-ranks.png").read_bytes().startswith(b"\x89PNG")


def test_a_mistake_that_ranks_find_is_told_once_and_nothing_is_written(mpirun_command, tmp_path):
    pytest.importorskip("matplotlib")
    launch = " ".join(mpirun_command("{ranks}", [])[:-1])
    asked = ["--ranks", "2", "-b", "1000G", "-e", "1000G", "--launch", launch, "--out", str(tmp_path)]
    done = run([sys.executable, str(PROGRAM), *asked], 300, PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("ringtrain: buffers of ") == 1 and "make -e smaller" in done.stderr
    assert "allreduce: launch 1 of 5, 2 ranks, failed: no more are started" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_could_not_be_drawn_is_told_before_anything_is_launched(tmp_path):
    """Ranks of tests find no matplotlib."""
    done = run([sys.executable, str(PROGRAM), "--out", str(tmp_path), "--launch", sys.executable], 60)
    assert done.returncode == 2 and "Error: a picture needs matplotlib: pip install" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "2,1"), "Invalid value for '--ranks': 1 is not in the range x>=2."),
        (("--launch", "no-such-mpirun -np {ranks}"), "--launch no-such-mpirun -np {ranks}: there is no such program"),
        *thorough(
            (("--ranks", "two"), "Invalid value for '--ranks': 'two' is not a valid integer"),
            (("--algorithm", "rign"), "unknown algorithm 'rign': "),
            (("--algorithm", "auto,prepared"), "give mpi among --algorithm: all are compared with it"),
            (("-b", "8M", "-e", "1M"), says(f"{8 << 20:,}", f"{1 << 20:,}")),
            (("-f", "0.5"), says("0.5")),
            (("--launch", ""), "--launch : there is no such program"),
            (("--launch", "'mpirun"), "--launch 'mpirun: No closing quotation"),
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_launched(arguments, message):
    done = run([sys.executable, str(PROGRAM), *arguments], 60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
