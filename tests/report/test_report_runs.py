"""A run read back from its log: whole, cut short, resumed, and what is no run."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.events import Failed
from tests.report.conftest import RANKS, ended, epoch, iteration, run
from tests.says import says


def test_a_whole_run_and_bytes_at_the_end_without_evaluations_which_are_not_made_up(write):
    trained = [iteration(iteration=k, examples=64, seconds=10.0 + k, images_per_s=64.0, loss=4 - k) for k in (1, 2)]
    log = read_run(write(run(), *trained, epoch(iteration=2, seconds=13.0, bytes_sent=800), RANKS, ended()), "mine")
    assert (log.name, log.outcome, log.iterations) == ("mine", "done", ended().iterations)
    # The first iteration took a second, until time stamp 11: time counts from 10 on.
    assert [(p.seconds, p.examples, p.loss) for p in log.train] == [(1.0, 64, 3), (2.0, 128, 2)]
    assert [(p.seconds, p.examples, p.nbytes, p.accuracy) for p in log.test] == [(3.0, 128, 800, 0.875)]
    assert [p.nbytes for p in log.train] == [400, 800]  # as bytes grow in proportion
    assert log.ranks["bytes_sent"] == [300, 500]
    log = read_run(write(run(), *(iteration(iteration=k) for k in (1, 2)), RANKS, ended()), "a")
    assert [p.nbytes for p in log.train] == [400, 800]
    log = read_run(write(run(), iteration(), epoch(iteration=1, bytes_sent=None)), "a")
    assert [p.nbytes for p in (*log.train, *log.test)] == [None, None]


def test_a_run_that_was_killed(write):
    folder = write(run(), iteration(iteration=1), iteration(iteration=2))
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"event": "itera')
    log = read_run(folder, "a")
    assert (log.outcome, log.iterations, log.end, log.ranks) == ("cut short", 2, None, None)
    log = read_run(write(run()), "a")  # before its first iteration
    assert (log.outcome, log.iterations, list(log.train), log.last_rate) == ("cut short", 0, [], None)


@pytest.mark.parametrize(("kind", "outcome"), [("DivergedError", "diverged"), ("StalledError", "failed")])
def test_a_run_that_failed(write, kind, outcome):
    log = read_run(write(run(), iteration(), Failed(error=kind, text="too hot")), "a")
    assert (log.outcome, log.failed["text"]) == (outcome, "too hot")


def test_a_resumed_run_is_one_run(write):
    folder = write(
        run(),
        *(iteration(iteration=k, examples=10, seconds=5.0 + k, images_per_s=10.0) for k in (1, 2)),
        epoch(iteration=2, seconds=8.0, bytes_sent=100),
        run(resumed_at=2),
        *(iteration(iteration=k, examples=10, seconds=1.0 + k, images_per_s=10.0) for k in (3, 4)),
        epoch(iteration=4, seconds=6.0, bytes_sent=60),
        ended(iterations=4, seconds=6.0),
    )
    log = read_run(folder, "a")
    assert [(p.seconds, p.examples, p.nbytes) for p in log.train] == [
        (1.0, 10, 50), (2.0, 20, 100), (4.0, 30, 130), (5.0, 40, 160)
    ]  # fmt: skip
    assert [(p.seconds, p.nbytes) for p in log.test] == [(3.0, 100), (6.0, 160)]
    assert (log.start["resumed_at"], log.outcome, log.iterations) == (2, "done", 4)


def test_what_is_no_run(tmp_path, write):
    (tmp_path / "b" / "log.jsonl").mkdir(parents=True)
    for folder, words in (
        (tmp_path / "nowhere", ("not", "there")),
        (tmp_path, ("log.jsonl",)),
        (write(iteration()), ("log.jsonl",)),
        (tmp_path / "b", (tmp_path / "b" / "log.jsonl",)),
    ):
        with pytest.raises(UsageError, match=says(folder, *words)):
            read_run(folder, "a")
