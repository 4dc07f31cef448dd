"""Where a run waits, for its examples, its exchange or a file system, and what it says of it: at its end, and on the
way."""

import threading
from itertools import cycle
from types import SimpleNamespace

import pytest
from small_runs import DIGITS, DROPOUT_NET, everywhere, iterate, losses, run_of

from ringtrain.errors import ConfigError
from ringtrain.report.events import Note
from ringtrain.report.sinks import Sink
from ringtrain.train.run import driver
from ringtrain.train.run import records as thresholds
from ringtrain.train.start.run_folder import TimedSink
from ringtrain.train.step.slow_rank import Pause, pause_of
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.activity import Activity
from tests.loopback.world import LoopbackWorld
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


# ── its exchange ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("worth_s", "flags", "noted"), [(0.0, {}, True), (1e9, {}, False), (0.0, {"sync": "sharded"}, False)]
)
def test_all_reduces_that_block_are_noted(monkeypatch, folder, worth_s, flags, noted):
    monkeypatch.setattr(thresholds, "WORTH_S", worth_s)
    monkeypatch.setattr(thresholds, "WORTH_SHARE", 0.0)
    options = {"model": "net.toml", "data": "digits", "batch": 30, "iterations": 4, "out": "run", **flags}
    everywhere(2, lambda transport: start(transport, None, dict(options), StopFlag()))
    entries = [each["text"] for each in records(folder / "run", "note")]
    assert [text for text in entries if "blocked" in text] == [says("ringtrain tune", "--algorithm")] * noted


# ── what a run says that it is doing ──────────────────────────────────────────────────────────────────────────────────
class Seen:
    """A backstop that keeps what it was armed for, and an activity's stages as they are entered."""

    def __init__(self):
        self.armed = []

    def arm(self, text, seconds):
        self.armed.append((text, seconds))

    def disarm(self):
        pass


def test_writing_an_event_is_a_stage_of_its_own():
    activity, seen = Activity(), []

    class Noting(Sink):
        def handle(self, event):
            seen.append((activity.stage.text, activity.stage.limited, event.text))

        def close(self):
            seen.append((activity.stage.text, activity.stage.limited, "closed"))

    sink = TimedSink(Noting(), activity, "writing run/log.jsonl")
    sink.handle(Note(text="well"))
    sink.close()
    assert seen == [("writing run/log.jsonl", True, "well"), ("writing run/log.jsonl", True, "closed")]
    assert activity.stage.text == ""


@pytest.mark.parametrize("size", [1, 2])
def test_data_are_opened_under_a_deadline(size):
    def body(t):
        t.activity.hard_timeout, t.activity.deadline_s = Seen(), 7.0
        run_of(t, DROPOUT_NET, iterations=1)
        return t.activity.hard_timeout.armed[0], t.activity.touches

    for armed, renewed in everywhere(size, body):
        assert armed == ("opening data digits", 7.0)
        assert renewed or size > 1  # of several one reads


def test_layers_and_iterations_are_said_as_they_pass(alone):
    run, _ = run_of(alone, DROPOUT_NET, iterations=2)
    seen, need = set(), run.worker.hooks.before_read

    def noted(span):
        seen.add((alone.activity.iteration, alone.activity.words()))
        need(span)

    run.worker.hooks.before_read = noted
    iterate(run, alone, 0, 2)
    assert {(1, "forward"), (2, "forward, layer 'drop'")} < {(i, w.replace("'flat'", "'drop'")) for i, w in seen}
    assert alone.activity.words() == "between two iterations"


def test_a_run_has_its_files_opened_and_written_under_its_deadline(alone, folder, monkeypatch):
    entered, during = [], alone.activity.during

    def noted(text, limited=False):
        entered.append((text, limited))
        return during(text, limited)

    monkeypatch.setattr(alone.activity, "during", noted)
    start(alone, None, {**DIGITS, "deadline_s": 40.0, "out": "o", "iterations": 1})
    assert alone.activity.deadline_s == 40.0
    for what in ("making run folder {}", "opening {}/log.jsonl", "writing {}/log.jsonl", "preparing the run"):
        assert (what.format("o"), True) in entered
    assert ("writing checkpoint o/checkpoints/iteration-00000001.h5", True) in entered
    assert ("evaluating", False) in entered and ("preparing the first iteration", False) in entered


def test_all_reduces_of_gradients_name_their_spans():
    def body(t):
        run, _ = run_of(t, DROPOUT_NET, iterations=1, check_collectives=True, algorithm="ring", bucket_bytes=64)
        with run.batches(t, 0, 1) as batches:
            run.worker.iterate(next(batches))
        texts = {entry.text for entry in run.guard.recorder.read()[t.rank].entries.values()}
        run.guard.close()
        return texts

    for texts in LoopbackWorld(2).run(body):
        assert "all-reduce of 16 float32 by ring (sum), conv1.bias" in texts
        assert any(text.endswith("by ring (sum), fc.bias") for text in texts)


# ── a rank that is slowed ─────────────────────────────────────────────────────────────────────────────────────────────
def test_it_rests_for_as_long_as_its_work_takes_it_longer():
    worked, rests = iter([10.0, 12.0, 12.5, 13.0, 13.0]), []
    pause = Pause(3.0, worked=lambda: next(worked), rest=rests.append)
    pause()
    pause()
    assert rests == [4.0, 1.0]


def test_one_rank_is_slowed_and_the_others_are_not():
    assert [pause_of("1:2", rank, range(3)) is None for rank in range(3)] == [True, False, True]
    assert pause_of(None, 0, range(1)) is None


@pytest.mark.parametrize(
    ("slow", "words"),
    [*((slow, []) for slow in ("1", "1:", "a:2", "1:2:3", "1:0.5", "1:nan", "1:2000")), ("2:2", ["ranks 0, 1"]),
     ("-1:2", ["ranks 0, 1"])],
)  # fmt: skip
def test_no_slowness_and_a_rank_that_does_not_train_are_refused(slow, words):
    with pytest.raises(ConfigError, match=says("--inject-slowdown", *words)):
        pause_of(slow, 0, range(2))


def test_what_is_learnt_does_not_hang_on_it():
    plain, slow = (
        LoopbackWorld(2).run(lambda t, flags=flags: losses(t, DROPOUT_NET, 2, **flags)[:2])
        for flags in ({}, {"inject_slowdown": "0:1.5"})
    )
    assert plain == slow
