import importlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from ringtrain.train.stopping import signals

PATIENCE_S = 60.0  # only a failure waits for it
BENCHMARKS = Path(__file__).parents[1] / "scripts" / "benchmarks"
STOPPING = signals.STOPPING

settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")
os.environ.pop("COLUMNS", None)  # of xdist's workers, which have no terminal: lines are as wide as what they say


RANKS = ("tests/mpi/", "tests/cluster/", "tests/docs/test_docs_commands.py", "tests/docs/test_docs_pages.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Two workers share the tests by files, but those that start ranks run one after another, in one worker."""
    from xdist.scheduler import LoadFileScheduling

    class RanksInOneWorker(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "ranks" if nodeid.startswith(RANKS) else super()._split_scope(nodeid)

    return RanksInOneWorker(config, log)


def pytest_collection_modifyitems(config, items):
    """Ranks first: they take longest. The daily run leaves the thorough tests out, unless the command line names tests
    or this marker.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(RANKS))
    if os.environ.get("RINGTRAIN_LONG_RUNS") == "1" or "thorough" in config.option.markexpr:
        return
    if any("::" in name for name in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def benchmarks(monkeypatch):
    """name → that module of scripts/benchmarks, which is no package"""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """One that is left would run beside all later tests, and what these measure would be its doing."""
    before = set(threading.enumerate())
    yield
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        thread.join(PATIENCE_S)
    assert not [thread.name for thread in new if thread.is_alive()]


@pytest.fixture(autouse=True)
def deaf(monkeypatch):
    """A Ctrl-C, or the SIGTERM of a `timeout` that runs the tests, is meant for them: it ends them, and is not taken
    for a signal to the run that is under test."""
    monkeypatch.setattr(signals, "STOPPING", (signal.SIGUSR1,))


@pytest.fixture
def heard(deaf, monkeypatch):
    """Runs take all signals, as they do elsewhere: for tests that send them."""
    monkeypatch.setattr(signals, "STOPPING", STOPPING)


@pytest.fixture(autouse=True)
def the_marker_device_is_true(request):
    """``-m device`` selects what runs on a real device, where there is one: all of that, and nothing else."""
    support = sys.modules.get("tests.ops.cuda_support")
    before = len(support.asked) if support else 0
    yield
    if support:
        marked = request.node.get_closest_marker("device") is not None
        assert (len(support.asked) > before) == marked, "wants the marker `device`, or is not to have it"
