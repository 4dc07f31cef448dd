import pytest
from small_runs import DROPOUT_NET

from ringtrain.report import plots
from ringtrain.train.start import start
from ringtrain.transport.loopback import Loopback

DRAW = "ringtrain.train.start.start.draw_curves"


@pytest.fixture
def alone():
    return Loopback()


@pytest.fixture
def train(alone, tmp_path, monkeypatch):
    """train(flag=value...): a run of a small net on the shipped digits, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.toml").write_text(DROPOUT_NET)

    def run(run_file=None, **flags):
        start.start(alone, run_file, {"model": "net.toml", "data": "digits", "ops": "reference", **flags})

    return run


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """A picture of the curves takes longer than most runs here."""
    monkeypatch.setattr(DRAW, lambda log, picture: None)


@pytest.fixture
def drawn(undrawn, monkeypatch):
    monkeypatch.setattr(DRAW, plots.draw_curves)
