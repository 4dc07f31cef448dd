"""`scripts/bench ddp` and `scripts/bench pytorch` on two ranks. Runs where torch is installed."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import BENCHMARKS

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")


@pytest.fixture
def bench(alone, mpirun_command):
    """bench(verb, arguments) → its output"""

    def start(verb, *arguments):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = alone([BENCHMARKS / f"{verb}.py", *arguments], PATH=path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


def test_two_ranks_compute_what_ddp_computes(bench):
    output = bench("pytorch", "resnet20", "--ranks", "2", "--batch", "6", "--check")
    assert output.split()[:2] == ["resnet20", "same:"]


@pytest.mark.thorough
def test_both_sides_are_timed(bench, tmp_path):
    bench("ddp", "gpt", "--seconds", "0", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["what"] for row in rows[:3]] == ["gpt", "all_reduce 4 B", "all_reduce 16 B"]
    assert rows[0]["difference"] <= 1e-6 and len(rows) == 14
    assert all(row["ratio"] > 0 and len(row["samples_s"]["gloo"]) == 3 for row in rows)


def test_nets_have_the_weights_that_the_page_names(benchmarks):
    nets = benchmarks("ddp_side")
    counts = {name: sum(each.numel() for each in make().parameters()) for name, make in nets.NETS.items()}
    millions = {name: round(count / 1e6, 1) for name, count in counts.items()}
    assert millions == {"resnet18": 11.2, "mlp": 50.4, "gpt": 10.9}
    net, (x, labels) = nets.NETS["gpt"](), nets.batch_of("gpt", 0)
    assert net(x).shape == (labels.numel(), 256)
