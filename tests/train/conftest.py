import pytest
from small_runs import DIGITS, DROPOUT_NET

from ringtrain.report import plots
from ringtrain.transport.loopback import Loopback
from tests.fakes.turns import OneAtATime
from tests.runs import start

DRAW = "ringtrain.train.start.start.draw_curves"


@pytest.fixture
def alone():
    return Loopback()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, in which the process is, with the small net of DIGITS."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.toml").write_text(DROPOUT_NET)
    return tmp_path


@pytest.fixture
def train(alone, folder):
    """train(flag=value...): a run of a small net on the shipped digits, in an empty folder."""

    def run(run_file=None, stop=None, **flags):
        start(alone, run_file, {**DIGITS, **flags}, stop)

    return run


@pytest.fixture
def in_turns(monkeypatch):
    """As ``everywhere``, of ranks that are apart: a seed decides who is ahead of whom."""

    def run(size, function, seed=0):
        with monkeypatch.context() as patched:
            return OneAtATime(size, patched, seed).run(function)

    return run


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """A picture of the curves takes longer than most runs here."""
    monkeypatch.setattr(DRAW, lambda log, picture: None)


@pytest.fixture
def drawn(undrawn, monkeypatch):
    monkeypatch.setattr(DRAW, plots.draw_curves)
