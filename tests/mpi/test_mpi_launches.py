"""Programs of `scripts/bench` that start ranks, and what they make of the figures: their tables."""

import json
import os
import sys
from pathlib import Path

import pytest

from ringtrain.bench import texts as bench_texts
from tests.mpi.conftest import ROOT, run

pytestmark = pytest.mark.mpi
FOLDER = ROOT / "scripts" / "benchmarks"
PROGRAM = FOLDER / "allreduce.py"


def test_launches_become_one_table(mpirun_command, tmp_path):
    pytest.importorskip("matplotlib")
    launch = " ".join(mpirun_command("{ranks}", [])[:-1])  # up to the interpreter
    out, figures = tmp_path / "out", tmp_path / "figures"
    asked = ["--launches", "2", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "64", "-n", "3", "-w", "1"]
    command = [sys.executable, str(PROGRAM), *asked, "--launch", launch, "--out", str(out), "--figures", str(figures)]
    done = run(command, 300, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "allreduce-2-ranks.json").read_text())
    assert [(row["algorithm"].partition(":")[0], row["bytes"]) for row in found["rows"]] == [
        (name, nbytes) for nbytes in (1024, 65536) for name in ("mpi", "auto", "prepared", "communicator")
    ]
    for row in found["rows"]:
        assert (row["status"], row["wrong"], row["repeats"]) == ("ok", 0, 6)
        ratios = row["launches"]["speedup"]
        assert len(ratios) == 2 and (row["algorithm"] == "mpi") == (ratios == [None, None])
    assert len(found["header"]["launches"]) == 2 and found["header"]["protocol"]["fresh"] is True
    text = (out / "allreduce-2-ranks.md").read_text()
    assert text in done.stdout and text.count("\n| ") == 6
    assert (figures / "allreduce-2-ranks.png").read_bytes().startswith(b"\x89PNG")


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
    assert done.returncode == 2 and done.stderr.startswith("allreduce: --plot needs matplotlib: pip install")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "1"), "give --launches of 1 or more, and --ranks of 2 or more each"),
        (("--ranks", "two"), "argument --ranks: invalid"),
        (("--algorithm", "rign"), "unknown algorithm 'rign': "),
        (("--algorithm", "auto,prepared"), "give mpi among --algorithm: all are compared with it"),
        (("-b", "8M", "-e", "1M"), bench_texts.BEGINS_AFTER_END(first=8 << 20, last=1 << 20)),
        (("-f", "0.5"), bench_texts.FACTOR_TOO_SMALL(factor=0.5)),
        (("-n", "0"), "give -n of 1 or more, and -w of 0 or more"),
        (("-w", "-1"), "give -n of 1 or more, and -w of 0 or more"),
        (("--launch", "no-such-mpirun -np {ranks}"), "--launch no-such-mpirun -np {ranks}: there is no such program"),
        (("--launch", ""), "--launch : there is no such program"),
        (("--launch", "'mpirun"), "--launch 'mpirun: No closing quotation"),
    ],
)
def test_mistakes_are_told_before_anything_is_launched(arguments, message):
    done = run([sys.executable, str(PROGRAM), *arguments], 60)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def cells(text: str) -> list[list[str]]:
    """The cells of its table, by line."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]


@pytest.fixture
def script(mpirun_command):
    """script(name, arguments) → CompletedProcess; mpirun is found as it is for other tests."""
    beside = str(Path(mpirun_command(1, [])[0]).parent)

    def start(name, *arguments):
        path = os.pathsep.join((beside, os.environ["PATH"]))
        more = {"PYTHONPATH": str(ROOT), "PATH": path, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        return run([sys.executable, str(FOLDER / f"{name}.py"), *arguments], 300, **more)

    return start


@pytest.mark.thorough
def test_the_guards_cost_is_a_table(script):
    done = script("guard", "--pairs", "3")
    assert done.returncode in (0, 1), done.stderr  # three pairs say nothing of its limits
    heads, _, *rows = cells(done.stdout)
    assert heads[:2] == ["algorithm", "bytes"]
    sizes = ("4,096", "32,768", "1,048,576", "16,777,216")
    assert [row[1] for row in rows] == 3 * list(sizes)
    assert [row[0].partition(":")[0] for row in rows] == [name for name in ("auto", "mpi", "ring") for _ in sizes]


@pytest.mark.thorough
def test_slopes_are_a_table_and_a_picture_beside_the_formulas(script, tmp_path):
    pytest.importorskip("matplotlib")
    done = script("slopes", "--mib", "0.1", "--ranks", "3", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = cells(done.stdout)
    assert [row[0].partition(",")[0] for row in rows] == [
        *("K", "---", "star", "2(K-1)·n/b", "2(K-1)·n/b", "ring", "2(1-1/K)·n/b", "2(1-1/K)·n/b")
    ]
    assert all(float(cell) > 0 for row in rows[2:] for cell in row[1:]) and rows[0] == ["K", "2", "3"]
    assert (tmp_path / "slopes.png").read_bytes().startswith(b"\x89PNG")
