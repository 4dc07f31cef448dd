"""`scripts/bench pytorch` on two ranks. Runs where torch is installed."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
PROGRAM = Path(__file__).parents[2] / "scripts" / "benchmarks" / "pytorch.py"


def test_two_ranks_compute_what_ddp_computes(alone, mpirun_command):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = alone([PROGRAM, "resnet20", "--ranks", "2", "--batch", "6", "--check"], PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["resnet20", "same:"]
