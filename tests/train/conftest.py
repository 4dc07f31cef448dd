import pytest

from ringtrain.report import plots

DRAW = "ringtrain.train.start.draw_curves"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """A picture of the curves takes longer than most runs here."""
    monkeypatch.setattr(DRAW, lambda log, picture: None)


@pytest.fixture
def drawn(undrawn, monkeypatch):
    monkeypatch.setattr(DRAW, plots.draw_curves)
