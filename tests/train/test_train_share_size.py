"""A rank's share that is too small for its exchange: the rule, its words, and notes of a run by clocks of our own."""

import threading
from itertools import count
from types import SimpleNamespace

import pytest
from small_runs import DROPOUT_NET, everywhere, run_of

from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.timings import BucketTimer
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.run import driver, share_size
from ringtrain.train.run.share_size import Division, FirstIterations, expected_note, least_examples, other_size, typical
from ringtrain.train.start.start import start
from ringtrain.train.stopping.signals import StopFlag
from tests.runs import records
from tests.says import says


@pytest.mark.parametrize(
    ("one", "other", "seconds", "least"),
    [
        ((0, 0.0), (8, 2.0), 6.0, 24),
        ((0, 0.0), (8, 2.0), 6.01, 25),
        ((1, 1.0), (33, 5.0), 9.0, 65),  # 7/8 s for any number of examples, and 1/8 s for each
        ((16, 2.0), (32, 6.0), 3.0, 20),
        ((8, 2.0), (32, 2.0), 3.0, 48),  # too noisy for a slope
        ((8, 2.0), (32, 0.0), 3.0, 48),
    ],
)
def test_examples_lie_on_the_line(one, other, seconds, least):
    assert least_examples(one, other, seconds) == least


def test_a_second_size_needs_little_memory():
    assert other_size((64, 1.0), 100.0) == 32 and other_size((1, 1.0), 100.0) == 32
    assert other_size((1, 1.0), 1.5) == 4 and other_size((31, 1.0), 1.01) == 32


def test_words_name_fewer_ranks_or_a_larger_batch():
    fewer, larger = says("--batch", 1024, 16), says("--batch", 256, 4)
    assert Division(1024, 1024).words(64) == {"examples": "1 example", "least": "64 examples", "division": fewer}
    assert Division(64, 4).words(64) == {"examples": "16 examples", "least": "64 examples", "division": larger}
    assert Division(1024, 128, grain=8).words(57)["least"] == "64 examples"  # whole ghost batches


def test_a_wait_for_another_rank_is_none_for_the_exchange():
    """In each iteration another rank is slow, and the others wait for it."""
    assert typical([[(5.0, 6.0), (0.5, 6.0)], [(0.5, 6.0), (5.0, 6.0)]]) == (0.5, 5.5)
    alike = [(1.0, 2.0), (1.5, 3.5), (9.0, 30.0)]
    assert typical([alike, alike]) == (1.5, 2.0)


# ── by the tuning file ────────────────────────────────────────────────────────────────────────────────────────
def expected(monkeypatch, seconds, **flags):
    """The notes of two ranks whose passes take a second each, with an exchange of so many seconds."""
    monkeypatch.setattr(Reducers, "expected_s", seconds)
    notes = everywhere(2, lambda t: expected_note(expecting(t, **flags), clock=map(float, count()).__next__))
    assert notes[0] == notes[1]
    return notes[0]


def expecting(transport, **flags):
    run, _ = run_of(transport, DROPOUT_NET, None, **{"algorithm": "ring", "batch": 30, "dtype": "float32", **flags})
    return run


@pytest.mark.parametrize(
    ("flags", "passes", "others", "least"),
    [
        ({}, "backward", "1 s", 96),  # 32 examples take no longer than 15
        ({"overlap": "forward"}, "backward and forward", "2 s", 48),
        ({"overlap": "forward", "clip_norm": 1.0}, "backward", "1 s", 96),
        ({"sync": "delayed"}, "backward and forward", "2 s", 48),
        ({"accumulate": 3}, "backward", "1 s", 96),  # of the last micro-batch
    ],
)
def test_a_longer_exchange_is_noted_before_the_first_iteration(monkeypatch, flags, passes, others, least):
    assert expected(monkeypatch, 3.0, **flags) == says(
        "Shares", "about", "4.125 KiB", "3 s", passes, others, *Division(30, 2).words(least).values()
    )


@pytest.mark.parametrize(
    ("seconds", "flags"),
    [
        (0.5, {}),
        (None, {}),
        (3.0, {"overlap": "none"}),
        (3.0, {"sync": "averaging"}),
        (3.0, {"sync": "gossip"}),
        (3.0, {"sync": "server", "algorithm": "auto"}),
        (3.0, {"fc": "hybrid"}),
    ],
)
def test_nothing_is_said_of_an_exchange_that_is_hidden_or_cannot_be(monkeypatch, seconds, flags):
    assert expected(monkeypatch, seconds, **flags) is None


@pytest.mark.parametrize(("seconds", "counts"), [(0.5, {32}), (1.5, {32, 60})])
def test_of_a_large_share_some_examples_are_timed_first(monkeypatch, seconds, counts):
    """32 examples take a second here, and all 60 two."""
    seen = set()

    def timed(run, size, *rest):
        seen.add(size)
        return size, 1.0 if size == 32 else 2.0

    monkeypatch.setattr(share_size, "timed", timed)
    assert expected(monkeypatch, seconds, batch=120) is None
    assert seen == counts


def test_on_a_device_passes_are_not_timed_by_the_host_and_the_first_iterations_tell(monkeypatch):
    monkeypatch.setattr(ReferenceOps, "records", True)
    assert expected(monkeypatch, 3.0) is None
    assert everywhere(2, lambda transport: FirstIterations(expecting(transport))._measuring) == [True, True]


# ── by the first iterations ───────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def trained(monkeypatch, tmp_path):
    """trained(blocked_s, flag=value...): (the notes on shares, the hash of the weights) of a run of two ranks whose
    iterations take a second, of which the exchange blocks so much. Each example takes 1/16 s."""
    (tmp_path / "net.toml").write_text(DROPOUT_NET)
    real, local, end, folders = share_size.timed, threading.local(), BucketTimer.end, map(str, count())

    def clock():
        local.now = getattr(local, "now", 0.0) + 1.0
        return local.now

    monkeypatch.setattr(driver, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(BucketTimer, "add_exposed", lambda self, seconds: None)
    monkeypatch.setattr(share_size, "timed", lambda *given: (real(*given)[0], given[1] / 16))

    def run(blocked_s, **flags):
        def ended(self, now):
            self.exposed_s += blocked_s
            end(self, now)

        monkeypatch.setattr(BucketTimer, "end", ended)
        out = tmp_path / next(folders)
        given = {"model": str(tmp_path / "net.toml"), "data": "digits", "ops": "reference", "out": str(out)}
        flags = {**given, "iterations": share_size.LAST + 2, "algorithm": "ring", **flags}
        everywhere(2, lambda transport: start(transport, None, dict(flags), StopFlag()))
        notes = [note["text"] for note in records(out, "note") if "share of" in note["text"]]
        return notes, records(out, "end")[0]["weights_sha256"]

    return run


def blocks_long(least):
    return says("blocks", "Less", "750 ms", "1 s", 3, 12, 0.25, *Division(30, 2).words(least).values())


@pytest.mark.parametrize("flags", [{}, {"overlap": "forward"}, {"sync": "delayed"}, {"accumulate": 2}])
def test_an_exchange_that_blocks_long_is_noted_once_and_the_run_is_the_same(trained, capsys, flags):
    """All else takes 1/4 s, and has to take 9/4 s: 32 examples more."""
    notes, weights = trained(0.75, **flags)
    assert notes == [blocks_long(47)]
    assert " ".join(capsys.readouterr().out.split()).count(notes[0]) == 1
    assert trained(0.125, **flags) == ([], weights)


def test_shards_are_in_proportion(trained):
    assert trained(0.75, reproducible=True, shards=4, algorithm="auto", ops="cpu")[0] == [blocks_long(135)]


@pytest.mark.parametrize("flags", [{"overlap": "none"}, {"sync": "gossip"}, {"iterations": share_size.LAST - 1}])
def test_nothing_is_noted_of(trained, flags):
    assert trained(0.75, **flags)[0] == []


def test_a_tuning_file_tells_before(trained, monkeypatch):
    monkeypatch.setattr(Reducers, "expected_s", 0.0)
    assert trained(0.75)[0] == []
