from functools import partial

import pytest

from ringtrain import Communicator
from ringtrain.api import communicator, plan
from ringtrain.monitor.guard import Guard
from ringtrain.transport.loopback import Loopback
from tests.fakes.clock import Clock


@pytest.fixture
def alone():
    return Communicator(Loopback())


@pytest.fixture
def timeless(monkeypatch):
    """The clock of guards, which stands still, and no turns: nobody's error ends the others."""
    clock = Clock()
    monkeypatch.setattr(communicator, "Guard", partial(Guard, turn_s=0.0, clock=clock))
    return clock


@pytest.fixture
def prepared(monkeypatch):
    """The requests and spans of all reductions that are prepared, rank by rank."""
    pairs, prepare = [], plan.PlanBuilder.prepare

    def noted(self, request, span):
        pairs.append((request, span))
        return prepare(self, request, span)

    monkeypatch.setattr(plan.PlanBuilder, "prepare", noted)
    return pairs


@pytest.fixture
def small_pieces(monkeypatch):
    """Of 800 bytes, of all rows."""
    for name in ("collective_runs.STAGING_BYTES", "memory.STAGING_BYTES", "communicator.STAGING_BYTES"):
        monkeypatch.setattr(f"ringtrain.api.{name}", 800)
    monkeypatch.setattr("ringtrain.api.collective_runs.MESSAGE_BYTES", 800)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")
