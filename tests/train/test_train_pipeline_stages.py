"""What a run says that it is doing, where it waits for a file system."""

import pytest
from small_runs import DIGITS, DROPOUT_NET, everywhere, iterate, run_of

from ringtrain.report.events import Note
from ringtrain.report.sinks import Sink
from ringtrain.train.start.run_folder import TimedSink
from ringtrain.transport.activity import Activity
from ringtrain.transport.loopback import Loopback
from tests.loopback.world import LoopbackWorld
from tests.runs import start


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


def test_layers_and_iterations_are_said_as_they_pass():
    def body(t):
        run, _ = run_of(t, DROPOUT_NET, iterations=2)
        seen, need = set(), run.worker.hooks.before_read

        def noted(span):
            seen.add((t.activity.iteration, t.activity.words()))
            need(span)

        run.worker.hooks.before_read = noted
        iterate(run, t, 0, 2)
        return seen, t.activity.words()

    seen, last = body(Loopback())
    assert {(1, "forward"), (2, "forward, layer 'drop'")} < {(i, w.replace("'flat'", "'drop'")) for i, w in seen}
    assert last == "between two iterations"


def test_a_run_has_its_files_opened_and_written_under_its_deadline(folder, monkeypatch):
    transport, entered = Loopback(), []
    during = transport.activity.during
    monkeypatch.setattr(
        transport.activity,
        "during",
        lambda text, limited=False: (entered.append((text, limited)), during(text, limited))[1],
    )
    start(transport, None, {**DIGITS, "deadline_s": 40.0, "out": "o", "iterations": 1})
    assert transport.activity.deadline_s == 40.0
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
