"""Runs that are told to stop: when, by what, and what they end with."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from small_runs import DROPOUT_NET, on_ranks, run_of

from ringtrain.config.record import TrainConfig, make_config
from ringtrain.data.file.dataset import open_dataset
from ringtrain.errors import HungUp, Interrupted, UsageError
from ringtrain.train import evaluate
from ringtrain.train.evaluate import EvaluationStopped
from ringtrain.train.start import open_run, start
from ringtrain.train.stopping import reasons, signals
from ringtrain.train.stopping.reasons import JobEnd, check_stop, find_job_end, stop_reason
from ringtrain.train.stopping.signals import StopFlag, StopPoll, watching
from tests.runs import records
from tests.says import says


@pytest.fixture
def train(train):
    return partial(train, out="run", resume="auto")


# ── the flag ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_first_signal_is_noted_and_an_end_follows_sigterm_alone(heard):
    with watching() as stop:
        assert not stop() and stop.why() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not stop.ending
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop() and stop.ending and stop.why() == "by SIGUSR1"
        stop.stopped()
    with watching() as stop:  # the next run of the same process
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
    stop, answers = StopFlag(), iter([None, "since it rains"])
    stop.other = lambda: next(answers)
    assert not stop()
    assert stop() and stop() and stop.why() == "since it rains"


class Gone(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def ends(monkeypatch, heard):
    """The exit codes that this process would have ended with."""
    codes = []

    def end(code):
        codes.append(code)
        raise Gone

    monkeypatch.setattr(signals.os, "_exit", end)
    return codes


def ended(program):
    """What becomes of a process: its exit code, and what it has said."""
    before = "import os, signal, sys; from ringtrain.train.stopping.signals import watching\n"
    again = "def again(): os.kill(os.getpid(), signal.SIGINT)\n"
    done = subprocess.run([sys.executable, "-c", before + again + program], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("numbers", "error", "code"), [([signal.SIGINT] * 2, KeyboardInterrupt, 130), ([signal.SIGHUP], HungUp, 129)]
)
def test_the_process_ends_when_the_outcome_is_written(ends, numbers, error, code):
    with pytest.raises(Gone), watching() as stop:
        calls = []
        stop.before_end, stop.end_all = lambda error: calls.append(type(error)), calls.append
        for number in numbers:
            os.kill(os.getpid(), number)
    assert ends == [code] and calls == [error, code]


HANG_UP = "os.kill(os.getpid(), signal.SIGHUP)"
WATCHING = "with watching(last=True) as stop:\n"
ENDINGS = {
    "a third Ctrl-C does not keep the outcome from being written": (
        "def write(error):\n again(); print('written')\n"
        f"{WATCHING} stop.before_end = write\n again(); again(); print('went on')",
        (130, "written\n"),
    ),
    # As callbacks of weak references pass over them, and __del__: with a traceback, and the run went on.
    "a second Ctrl-C is no exception, which could be passed over": (
        f"class Dying:\n def __del__(self): again()\n{WATCHING} again(); Dying(); print('went on')",
        (130, ""),
    ),
    "an error in the second Ctrl-C does not keep it from ending": (
        f"{WATCHING} stop.before_end = lambda error: 1 / 0\n again(); again(); print('went on')",
        (130, ""),
    ),
    # There is a checkpoint, and the status says so: until the very end of the process.
    "Ctrl-C when the run has stopped": (
        f"{WATCHING} again(); stop.stopped(); again()\nagain(); sys.exit(75)",
        (75, ""),
    ),
    "SIGHUP when the run has stopped": (f"{WATCHING} stop.stopped(); {HANG_UP}\n{HANG_UP}; sys.exit(75)", (75, "")),
    "SIGHUP under nohup": (f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{WATCHING} {HANG_UP}\n{HANG_UP}", (0, "")),
    "SIGHUP to another program": (
        f"from ringtrain.transport.world import connect; connect(); {HANG_UP}",
        (-signal.SIGHUP, ""),
    ),
}


@pytest.mark.parametrize(("program", "end"), ENDINGS.values(), ids=ENDINGS)
def test_what_ends_a_process_and_what_does_not(program, end):
    assert ended(program) == end


@pytest.mark.parametrize("ignored", [False, True])
def test_a_run_without_a_launcher_ends_with_its_terminal(tmp_path, ignored):
    """The MPI takes the signal for itself."""
    flags = ["--out", str(tmp_path / "run"), "--iterations", "30" if ignored else "1000000000"]
    command = [sys.executable, "-m", "ringtrain", "train", "--ops", "reference", *flags]
    prepare = (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare)
    for line in run.stdout:
        if line.startswith("iteration "):
            run.send_signal(signal.SIGHUP)
            break
    run.communicate()
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert (run.returncode, outcome["exit_code"]) == ((0, 0) if ignored else (129, 129))
    assert outcome["text"] == ("" if ignored else says("SIGHUP", "terminal"))


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGTERM])
def test_the_first_ctrl_c_after_another_signal_is_a_first_one(first, ends):
    with watching() as stop:
        os.kill(os.getpid(), first)
        assert stop.ending == (first == signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.why() == f"by {first.name}" and stop.ending
        with pytest.raises(Gone):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_request_that_comes_when_all_is_over_does_not_kill(heard):
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        with watching():
            pass
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        with watching(last=True):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_is_meant_for_the_tests_is_not_taken_by_a_run():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with watching():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# ── the end of a job ──────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("now", "slowest_s", "text"),
    [
        (880.0, 0.0, None),
        (881.0, 0.0, "119 s before the end of the job"),
        (700.0, 149.0, None),  # the slowest checkpoint must fit twice
        (700.0, 151.0, "300 s before the end of the job"),
    ],
)
def test_a_job_end_is_a_reason_when_less_is_left_than_is_wanted(now, slowest_s, text):
    end = JobEnd(1000.0, 120.0, lambda: now)
    end.slowest_s = slowest_s
    assert end() == text
    assert JobEnd(None, 120.0)() is None and JobEnd(None, 0).words() is None


@pytest.mark.parametrize(
    ("value", "left", "before"), [(None, 7200, 120.0), (None, 600, 60.0), (30.0, 600, 30.0), (None, -5, 0.0)]
)
def test_how_long_before_the_end_a_run_stops(alone, value, left, before):
    """Its note names the signal of the job's script, if that comes earlier."""
    for seconds, first in (("", before), ("90", max(before, 90))):
        environ = {"RINGTRAIN_JOB_END": str(10_000 + left), "RINGTRAIN_SIGNAL_S": seconds}
        end = find_job_end(alone, make_config(stop_before_s=value).run, environ, str, lambda: 1e4)
        assert (end.end, end.before_s) == (10_000 + left, before) and end.words().startswith("the job ends at 19")
        assert end.words().endswith(f"this run stops {first:.0f} s before that")


def test_an_end_that_is_left_off_or_not_known_or_no_time(alone):
    assert find_job_end(alone, make_config(stop_before_s=0.0).run, {"SLURM_JOB_ID": "1"}, None).end is None
    note = find_job_end(alone, make_config(stop_before_s=60.0).run, {}, str).words()
    assert note.startswith("--stop-before-s 60: no end of a job is known here: export RINGTRAIN_JOB_END=")

    def look(transport):
        environ = {"RINGTRAIN_JOB_END": "x"} if transport.rank == 0 else {}
        return find_job_end(transport, TrainConfig().run, environ, str)

    assert [type(each) for each in on_ranks(3, look)] == [UsageError] * 3


def test_a_run_stops_before_the_end_of_its_job(train, tmp_path, monkeypatch):
    """By a clock that goes 10 s with every look at it."""
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setenv("RINGTRAIN_JOB_END", "400")
    monkeypatch.setattr(reasons.find_job_end, "__defaults__", (None, lambda: float(next(clock))))
    with pytest.raises(Interrupted, match=r"^stopped \d+ s before the end of the job after iteration \d+;") as error:
        train(iterations=2000, stop_before_s=100.0)
    assert error.value.exit_code == 75
    (end,) = records(tmp_path / "run", "end")
    assert end["reason"] == "interrupted" and 5 < end["iterations"] < 35
    notes = [record["text"] for record in records(tmp_path / "run", "note")]
    assert any(text.startswith("the job ends at 1970-01-01") for text in notes)
    monkeypatch.delenv("RINGTRAIN_JOB_END")
    train(iterations=end["iterations"] + 2)


# ── before the first iteration ────────────────────────────────────────────────────────────────────────────────────────
def test_a_signal_before_the_first_iteration(heard, train, tmp_path, monkeypatch):
    """Before all of it, while data are opened, and while kernels are compiled."""

    def told(number, returned=None):
        return lambda *_: os.kill(os.getpid(), number) or returned

    with watching() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(Interrupted, match=says("by SIGUSR1")):
            train(stop=stop, iterations=5)
        os.kill(os.getpid(), signal.SIGUSR1)  # it is still noted, and kills nobody
    with monkeypatch.context() as patched:
        patched.setattr(open_run, "read_data", told(signal.SIGUSR1, open_dataset("digits")))
        with pytest.raises(Interrupted, match="^" + says("by SIGUSR1", "checkpoint", "yet")):
            train(iterations=5)
    assert not (tmp_path / "run").exists()
    train(iterations=2)
    monkeypatch.setattr(start, "_prepare", told(signal.SIGTERM))
    with pytest.raises(Interrupted, match="^" + says("by SIGTERM", 2, "checkpoint", "was")):
        train(iterations=5)
    outcome = json.loads((tmp_path / "run/outcome.json").read_text())
    assert (outcome["outcome"], outcome["exit_code"], outcome["iteration"]) == ("interrupted", 75, 2)


@pytest.mark.parametrize(("stopping", "why"), [((2,), "by SIGUSR1 to rank 2"), ((0, 1, 2), "by SIGUSR1"), ((), None)])
def test_one_rank_that_is_told_ends_all_and_is_named(stopping, why):
    def told(transport):
        stop = StopFlag()
        stop.other = lambda: "by SIGUSR1" if transport.rank in stopping else None
        assert stop_reason(transport, stop) == why
        check_stop(transport, stop, "there is no checkpoint of it yet")

    errors = on_ranks(3, told)
    text = f"stopped {why} before the first iteration; there is no checkpoint of it yet: start it again by the same "
    assert [error and (str(error), error.everywhere) for error in errors] == [why and (text + "command", True)] * 3


# ── evaluations ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_question_is_answered_when_the_next_is_put():
    """Rank 1 is told to stop before its third question."""

    def ask(transport):
        answers = iter([False, False] + [True] * 9)
        asked = StopPoll(transport, (lambda: next(answers)) if transport.rank == 1 else lambda: False, 30)
        return [asked() for _ in range(4)] + [asked.answer(), asked.answer()]

    assert on_ranks(3, ask) == [[False, False, False, True, True, False]] * 3


def test_an_evaluation_is_broken_off_by_all_ranks(monkeypatch):
    def score(transport):
        run, _ = run_of(transport, DROPOUT_NET)
        seen, answers = [], iter([False, False] + [True] * 99)
        evaluator = run.evaluator
        monkeypatch.setattr(evaluator, "_stop_requested", lambda: transport.rank == 1 and next(answers))
        monkeypatch.setattr(evaluator, "_add", lambda part, totals: seen.append(part))
        with pytest.raises(EvaluationStopped):
            evaluator.score(run.data.test, 16)
        return len(seen)

    assert on_ranks(2, score) == [4, 4]


@pytest.mark.parametrize("iterations", [4, 8])
def test_a_run_that_is_told_while_it_is_scored_saves_and_goes_on_to_the_same_weights(
    train, tmp_path, monkeypatch, iterations
):
    """In an evaluation on the way, and in the last one, which is made when the run goes on."""
    train(iterations=iterations, out="whole", evaluate_every=4)
    add = evaluate.Evaluator._add

    def told(self, part, totals):
        if not signalled:
            signalled.append(os.kill(os.getpid(), signal.SIGUSR1))
        return add(self, part, totals)

    signalled = []
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH", 16)
    monkeypatch.setattr(evaluate.Evaluator, "_add", told)
    monkeypatch.setattr(start, "rehearse", lambda *args: None)
    monkeypatch.setattr("ringtrain.train.assembly.assemble.EVALUATION_BATCH", 16)
    with pytest.raises(Interrupted, match="^" + says("--out", "--resume", "by SIGUSR1", 4, "run")):
        train(iterations=iterations, evaluate_every=4)
    train(iterations=iterations, evaluate_every=4)
    ends = [records(tmp_path / name, "end")[-1] for name in ("whole", "run")]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert ends[0]["test_accuracy"] == ends[1]["test_accuracy"] is not None
    assert np.isfinite(ends[1]["test_loss"])


def test_a_second_ctrl_c_in_an_evaluation_is_the_outcome(train, tmp_path, monkeypatch, ends):
    def told(self, part, totals):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(evaluate.Evaluator, "_add", told)
    monkeypatch.setattr(start, "rehearse", lambda *args: None)
    with pytest.raises(Gone):
        train(iterations=8, evaluate_every=4)
    outcome = json.loads((tmp_path / "run/outcome.json").read_text())
    assert ends == [130] and (outcome["outcome"], outcome["exit_code"], outcome["iteration"]) == ("interrupted", 130, 4)


def test_a_ctrl_c_when_the_run_has_stopped_is_passed_over(train, tmp_path, monkeypatch, ends):
    stopped = StopFlag.stopped

    def once_more(stop):
        stopped(stop)
        os.kill(os.getpid(), signal.SIGINT)

    def told(self, part, totals):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StopFlag, "stopped", once_more)
    monkeypatch.setattr(evaluate.Evaluator, "_add", told)
    monkeypatch.setattr(start, "rehearse", lambda *args: None)
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH", 360)
    monkeypatch.setattr("ringtrain.train.assembly.assemble.EVALUATION_BATCH", 360)
    with pytest.raises(Interrupted, match=r"after iteration \d; a checkpoint is in run"):
        train(iterations=8, evaluate_every=4)
    assert ends == [] and json.loads((tmp_path / "run/outcome.json").read_text())["exit_code"] == 75
