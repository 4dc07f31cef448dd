"""The thread that shows stacks and ends what takes too long; what a rank says that it is doing."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringtrain.cli.world import deadline_of
from ringtrain.errors import UsageError
from ringtrain.monitor import hang_detector, stack_dump
from ringtrain.monitor.hang_detector import EVERY_S, HangDetector
from ringtrain.monitor.watchdog import PAUSED_S
from ringtrain.transport.activity import Activity
from tests.fakes.clock import Clock
from tests.says import says

pytestmark = pytest.mark.timing


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("ringtrain.transport.activity.time.monotonic", clock)
    return clock


@pytest.fixture
def activity(clock):
    activity = Activity(deadline_s=10.0)
    activity.host = "node7"
    return activity


def looks(detector, clock, seconds):
    """What is told within so many seconds, if anything."""
    for _ in range(int(seconds / EVERY_S)):
        clock.now += EVERY_S
        error = detector.look()
        if error is not None:
            return error
    return None


# ── stages ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_only_a_limited_stage_ends_and_it_names_itself(activity, clock):
    """And says what all ranks do besides."""
    detector = HangDetector(activity, 3, None, clock)
    activity.everyone = lambda: ["activity of every rank:", "  rank 1: forward\x1b"]
    activity.at("forward")
    assert looks(detector, clock, 100) is None
    with activity.during("writing checkpoint runs/a.h5", limited=True):
        assert looks(detector, clock, 10) is None
        error = looks(detector, clock, 1)
    stalled = says("--deadline-s", "10.2", "writing checkpoint runs/a.h5", 3, "node7")
    assert str(error).splitlines() == [stalled, "activity of every rank:", r"  rank 1: forward\x1b"]
    assert error.exit_code == 4
    assert looks(detector, clock, 100) is None and activity.stage.text == "forward"


def test_a_process_that_was_stopped_itself_has_its_time_again_and_where_every_look_is_late_time_counts(activity, clock):
    with activity.during("writing", limited=True):
        detector = HangDetector(activity, 0, None, clock)
        assert looks(detector, clock, 8) is None
        clock.now += PAUSED_S + 100.0
        assert detector.look() is None and looks(detector, clock, 10) is None
        assert looks(detector, clock, 1) is not None
    with activity.during("writing", limited=True):
        detector, errors = HangDetector(activity, 0, None, clock), []
        for _ in range(5):
            clock.now += EVERY_S + PAUSED_S + 1.0
            errors.append(detector.look())
    assert [error is not None for error in errors] == [False] * 4 + [True]
    assert str(errors[-1]) == says("--deadline-s", "13 s", "writing")


def test_a_stage_that_gets_on_is_not_stuck_and_who_waits_within_a_held_one_is_not_limited_meanwhile(activity, clock):
    detector = HangDetector(activity, 0, None, clock)
    with activity.holds_gil("opening data"):
        for _ in range(5):
            assert looks(detector, clock, 8) is None
            activity.touch()
    assert activity.touches == 5
    calls = []
    arm, disarm = (lambda *armed: calls.append(armed)), (lambda: calls.append("disarmed"))
    activity.hard_timeout = SimpleNamespace(arm=arm, disarm=disarm)
    with activity.holds_gil("opening data"):
        with activity.during("waiting for the others"):
            assert looks(detector, clock, 100) is None
        assert looks(detector, clock, 9) is None
        assert activity.stage.text == "opening data"
    armed = ("opening data", 10.0)
    assert calls == [armed, "disarmed", armed, "disarmed"]


# ── stacks ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_stacks_say_who_and_where(activity):
    assert stack_dump.current_stage(activity) == says("first", "stage")  # it does nothing yet
    began, ended = threading.Event(), threading.Event()

    def waits_in_vain():
        began.set()
        ended.wait(20)

    thread = threading.Thread(target=waits_in_vain, name="another")
    thread.start()
    assert began.wait(20)
    activity.iteration, activity.layer, activity.collective = 47, lambda: "conv2", lambda: "in collective 9, a dance"
    activity.at("backward")
    text = stack_dump.compose(activity, 5)
    ended.set()
    thread.join()
    first, second, *_ = text.splitlines()
    assert first == says(5, "node7", os.getpid(), "iteration 47", activity.words(), "in collective 9, a dance")
    assert activity.words() == "backward, layer 'conv2'" and second == says("'MainThread'")
    activity.at("the update")
    assert activity.words() == "the update"  # of no layer
    stack = text[text.index("thread 'another'") :]
    assert stack.splitlines()[1].endswith(" in waits_in_vain") and "_bootstrap" not in text


def test_the_thread_shows_stacks_when_it_is_asked_and_leaves_signals_as_they_were(monkeypatch):
    shown = threading.Event()
    monkeypatch.setattr(stack_dump, "write_stacks", lambda activity, rank: shown.set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with HangDetector(Activity(), 0, None) as detector:
        detector.listen()
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_kill(detector._thread.ident, signal.SIGUSR2)
        assert shown.wait(20)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before and not detector._thread.is_alive()


def taken_by(thread):
    """Whether SIGUSR2 may come to this thread of the process."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return not int(status.split("SigBlk:")[1].split()[0], 16) >> signal.SIGUSR2 - 1 & 1


def test_threads_that_the_mpi_starts_do_not_take_the_signal():
    """They inherit what the main thread takes; only the detector's thread takes it then, whatever holds the GIL."""
    activity, done = Activity(), threading.Event()
    with HangDetector(activity, 0, None) as detector:
        with activity.holds_gil("starting the MPI"):
            other = threading.Thread(target=done.wait, args=(20,))
            other.start()
            assert taken_by(detector._thread.native_id) and not taken_by(other.native_id)
        detector.listen()
        with activity.holds_gil("opening data"):  # which starts none
            assert taken_by(threading.main_thread().native_id)
        assert not taken_by(threading.main_thread().native_id) and not taken_by(other.native_id)
        done.set()
        other.join()


def test_the_thread_ends_what_takes_too_long(monkeypatch):
    monkeypatch.setattr(stack_dump, "write_stacks", lambda activity, rank: None)
    errors, ended = [], threading.Event()

    def end(error):
        errors.append(str(error))
        ended.set()

    activity = Activity(deadline_s=0.01)
    with HangDetector(activity, 0, end), activity.during("writing", limited=True):
        assert ended.wait(20)
    assert errors[0] == says("--deadline-s", "writing") and hang_detector.EVERY_S < 1


def test_the_deadline_of_what_has_none_of_its_own():
    assert (deadline_of({}), deadline_of({"RINGTRAIN_DEADLINE_S": "7.5"})) == (300.0, 7.5)
    for value in ("soon", "0", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match=f"^RINGTRAIN_DEADLINE_S is .{value}.: wanted a number of seconds"):
            deadline_of({"RINGTRAIN_DEADLINE_S": value})
