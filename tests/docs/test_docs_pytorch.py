"""The page of PyTorch works as written. Runs where torch is installed."""

import pytest

from tests.docs.markdown import steps
from tests.docs.playing import ROOT, Plan, Stage, play

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi
PAGE = ROOT / "docs" / "pytorch.md"
PLAN = Plan(
    absent={"pip install 'ringtrain[torch]'": "installs from the network"},
    instead={
        "mpirun -np 2 python -m ringtrain.torch train.py": "mpirun -np 2 python -W ignore -m ringtrain.torch train.py"
    },
)


@pytest.mark.thorough
def test_every_command_works_and_prints_what_is_shown(tmp_path):
    play(PAGE, Stage(tmp_path), PLAN)


def test_the_plan_names_commands_that_are_there():
    assert PLAN.named() <= {step.command for step in steps(PAGE.read_text())}
