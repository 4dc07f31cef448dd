"""A rank that waits for its examples says so at the end of the run, and its rate counts the waits."""

import threading
from itertools import cycle
from types import SimpleNamespace

import pytest
from small_runs import DIGITS, everywhere

from ringtrain.train.run import driver
from ringtrain.train.stopping.signals import StopFlag
from tests.runs import records, start
from tests.says import says

ITERATIONS, BATCH = 12, 30


@pytest.fixture
def waited(monkeypatch, folder):
    """waited(waits): the records of the end, by kind, of a run whose iterations take a second on each rank, and whose
    ranks wait for ``waits[rank]`` seconds before each."""

    def run(*waits):
        local = threading.local()

        def clock():
            """Called before the wait, after it, and after the iteration."""
            if not hasattr(local, "steps"):
                local.now, local.steps = 0.0, cycle((0.0, waits[local.rank], 1.0))
            local.now += next(local.steps)
            return local.now

        def trained(transport):
            local.rank = transport.rank
            start(transport, None, dict(flags), StopFlag())

        flags = {**DIGITS, "algorithm": "ring", "iterations": ITERATIONS, "batch": BATCH, "out": "run"}
        monkeypatch.setattr(driver, "time", SimpleNamespace(perf_counter=clock))
        everywhere(len(waits), trained)
        return {kind: records(folder / "run", kind) for kind in ("ranks", "note", "end")}

    return run


def notes(events):
    return [note["text"] for note in events["note"] if "waited" in note["text"]]


def test_the_rank_that_waits_longest_is_noted(waited):
    events = waited(0.125, 1.0)
    assert notes(events) == [says(1, f"{11 / 23:.0%}")]
    # The loader starts with the first iteration, whose wait does not count.
    assert events["ranks"][0]["waited_s"] == [11 * 0.125, 11.0]
    assert events["ranks"][0]["training_s"] == [12.0, 12.0]
    assert events["end"][0]["images_per_s"] == pytest.approx(BATCH / 1.125)


@pytest.mark.parametrize("waits", [(0.0, 0.0), (0.03125, 0.0), (0.25, 0.375)])
def test_short_waits_are_recorded_and_not_noted(waited, waits):
    """They are below a twentieth of the time, or below five seconds."""
    events = waited(*waits)
    assert notes(events) == [] and events["ranks"][0]["waited_s"] == [11 * wait for wait in waits]
