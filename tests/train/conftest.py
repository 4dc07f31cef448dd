import signal

import pytest

from ringtrain.report import plots
from ringtrain.train import signals

DRAW = "ringtrain.train.start.draw_curves"
STOPPING = signals.STOPPING


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """A picture of the curves takes longer than most runs here."""
    monkeypatch.setattr(DRAW, lambda log, picture: None)


@pytest.fixture(autouse=True)
def deaf(monkeypatch):
    """A Ctrl-C, or the SIGTERM of a `timeout` that runs the tests, is meant for them: it ends them, and is not taken
    for a signal to the run that is under test."""
    monkeypatch.setattr(signals, "STOPPING", (signal.SIGUSR1,))


@pytest.fixture
def heard(deaf, monkeypatch):
    """Runs take all signals, as they do elsewhere: for tests that send them."""
    monkeypatch.setattr(signals, "STOPPING", STOPPING)


@pytest.fixture
def drawn(undrawn, monkeypatch):
    monkeypatch.setattr(DRAW, plots.draw_curves)
