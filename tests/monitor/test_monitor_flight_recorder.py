"""The board: rows that their ranks write and that all read."""

import numpy as np
import pytest

from ringtrain.monitor.flight_recorder import CALLS, RING, TEXT_BYTES, FlightRecorder, fingerprint
from tests.loopback.world import LoopbackWorld
from tests.says import says

TEXT = "all-reduce of 5 float32 by ring (sum)"
SUM, MAX = fingerprint(TEXT), fingerprint("all-reduce of 5 float32 by ring (max)")


def boards(size):
    """Every rank's view of one board."""
    return LoopbackWorld(size).run(FlightRecorder)


def states(row):
    return [(entry.number, entry.text, entry.done) for entry in row.entries.values()]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_rank_reads_what_each_has_written(size):
    every = boards(size)
    for board in every:
        assert board.describe(TEXT) == SUM
        words = [board.begin(SUM) for _ in range(board.rank + 1)]
        board.end(words[0])
        board.move(words[-1], 7)
        board.iterate(board.rank + 40)
    assert not any(board.reported_number() for board in every)
    every[-1].leave()
    every[-1].report(9)
    assert [board.reported_number() for board in every] == [9] * (size - 1) + [0]
    for board in every:
        rows = board.read()
        assert [row.last for row in rows] == list(range(1, size + 1))
        assert [row.iteration for row in rows] == list(range(40, 40 + size))
        assert [row.left for row in rows] == [False] * (size - 1) + [True]
        for row in rows:
            assert states(row) == [(n, TEXT, n == 1) for n in range(1, row.rank + 2)]
            assert row.entries[row.last].moved == 7


def test_the_end_compares_with_the_next_rank_and_a_first_difference_is_behind_what_agrees():
    first, second, third = boards(3)
    words = [board.begin(SUM) for board in (first, second)]
    assert first.end(words[0]) and not second.end(words[1])  # the third has not begun it, which is no difference
    assert not second.differs(words[1]) and second.first_difference() == 0
    word = third.begin(MAX)
    assert third.next_rank_differs(word) and not first.next_rank_differs(words[0])
    assert all(board.first_difference() == 1 for board in (first, second, third))
    assert first.differs(words[0])
    first, second = boards(2)
    for number in range(1, 10):
        first.begin(SUM)
        second.begin(MAX if number in (4, 7) else SUM)
    assert (first.first_difference(), second.first_difference()) == (4, 4)


class WrittenMeanwhile(np.ndarray):
    """Words that another rank overwrites while this one compares them."""

    meanwhile = staticmethod(lambda: None)

    def __rshift__(self, bits):
        shifted = super().__rshift__(bits)
        WrittenMeanwhile.meanwhile()
        return shifted


def test_a_rank_that_goes_far_ahead_during_a_comparison_differs_in_nothing(monkeypatch):
    first, second = boards(2)
    word = first.begin(SUM)
    second.begin(SUM)
    first._words = first._words.view(WrittenMeanwhile)

    def ahead():
        for _ in range(RING):
            second.begin(SUM)

    monkeypatch.setattr(WrittenMeanwhile, "meanwhile", staticmethod(ahead))
    assert not first.differs(word)
    first.begin(SUM)
    second.last = 1
    second.begin(SUM)
    assert first.first_difference() == 0


def test_a_row_remembers_the_last_ones():
    (board,) = boards(1)
    assert board.describe(TEXT) == SUM
    words = [board.begin(SUM) for _ in range(2 * RING + 3)]
    assert list(board.read()[0].entries) == list(range(RING + 4, 2 * RING + 4))
    assert board.inside() == words[-RING:]
    board.end(words[2])  # its place has been taken by a later one, which is still under way
    assert board.inside() == words[-RING:]
    assert board.end(words[-1]) and board.inside() == words[-RING:-1]


def test_calls_beyond_the_table_lose_the_text_of_the_oldest_for_others_and_a_long_text_is_cut():
    writer, reader = boards(2)
    calls = [f"call {i}" for i in range(CALLS + 1)]
    for call in calls:
        writer.describe(call)
        writer.begin(writer.describe(call))
    texts = [entry.text for entry in reader.read()[0].entries.values()]
    assert texts == [says("flight", "recorder"), *calls[1:]]
    assert [entry.text for entry in writer.read()[0].entries.values()] == calls
    writer, reader = boards(2)
    writer.begin(writer.describe("é" * TEXT_BYTES))
    assert reader.read()[0].entries[1].text == "é" * (TEXT_BYTES // 2)


def test_another_size_is_another_fingerprint():
    texts = [f"all-reduce of {n} float32 by ring (sum)" for n in range(10_000)]
    assert len({fingerprint(text) for text in texts}) == len(texts)
    assert all(0 < fingerprint(text) < 1 << 32 for text in texts)
