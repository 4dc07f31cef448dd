"""Memory that a node shares: twins of a span, and counters to wait by."""

import numpy as np

from ringtrain.transport.shared_arena import (
    LANES_AT_ONCE,
    LINE_BYTES,
    SharedArena,
    SignalCounter,
    SignalCounters,
    find_peer_views,
)


def arena(rank=1, nbytes=64):
    return SharedArena([np.full(nbytes, place, np.uint8) for place in range(3)], rank)


def test_a_span_has_a_twin_on_every_rank():
    shared = arena()
    for start, stop in ((0, 64), (0, 0), (60, 64), (64, 64)):
        assert [view.size for view in shared.peer_views(shared.arrays[1][start:stop])] == [stop - start] * 3
    views = shared.peer_views(shared.arrays[1].view("f4")[3:7])
    views[2][:] = 1.5
    assert [view.dtype for view in views] == [np.float32] * 3
    assert (shared.arrays[2].view("f4")[3:7] == 1.5).all() and (shared.arrays[2][:12] == 2).all()
    assert (shared.arrays[2][28:] == 2).all() and (shared.arrays[0] == 0).all()


def test_a_span_elsewhere_or_with_gaps_has_none():
    shared, other = arena(), arena(rank=0)
    assert shared.peer_views(np.zeros(4, "f4")) is None
    assert shared.peer_views(shared.arrays[0][:8]) is None  # another rank's piece is not this rank's to name
    long = np.zeros(256, np.uint8)
    assert SharedArena([long[:64], long[64:128]], 0).peer_views(long[60:68]) is None  # across the end
    assert find_peer_views([shared, other], other.arrays[0][8:16])[1].tolist() == [1] * 8
    assert find_peer_views([shared], np.zeros(4)) is None and find_peer_views([], np.zeros(4)) is None
    assert find_peer_views([shared], memoryview(b"no array")) is None
    # Every second element: as many as are asked for, and they are others.
    assert shared.peer_views(shared.arrays[1][:20:2]) is None and shared.peer_views(shared.arrays[1][20::-1]) is None


def test_a_lane_is_reached_when_all_have_advanced_as_often():
    counters, log = [np.zeros(1, np.int64) for _ in range(3)], []
    lanes = [SignalCounter(counters, rank, lambda: log.append("sync")) for rank in range(3)]
    assert all(each.reached() for each in lanes)
    lanes[0].advance()
    assert not lanes[0].reached() and lanes[0].late() == [1, 2]
    assert lanes[1].reached()  # it has not come itself, and waits for nobody
    lanes[2].advance()
    assert not lanes[0].reached() and lanes[0].late() == [1]
    lanes[1].advance()
    lanes[1].advance()
    assert lanes[0].reached() and lanes[2].reached() and not lanes[1].reached()
    assert [counter[0] for counter in counters] == [1, 2, 1]


def test_memory_is_ordered_before_a_count_and_after_one_is_seen():
    log = []
    alone, behind = (SignalCounter([np.array([0]), np.array([n])], 0, lambda: log.append("sync")) for n in (5, -1))
    alone.advance()
    assert log == ["sync"]
    assert alone.reached() and log == ["sync"] * 2
    assert not behind.reached() and log == ["sync"] * 2


def test_lanes_come_in_blocks_each_on_a_line_of_its_own():
    asked = []

    def window(nbytes):
        asked.append(np.zeros(nbytes, np.uint8))
        return asked[-1]

    lanes = SignalCounters(window, 1, 2, lambda: None)
    for tag in (0, 1, LANES_AT_ONCE - 1, LANES_AT_ONCE, 0):
        lanes.signal_counter(tag).advance()
    assert [block.size for block in asked] == [LANES_AT_ONCE * 2 * LINE_BYTES] * 2
    where = np.flatnonzero(asked[0].view(np.int64)) * 8
    assert where.tolist() == [LINE_BYTES, 3 * LINE_BYTES, (2 * LANES_AT_ONCE - 1) * LINE_BYTES]
    assert asked[0].view(np.int64)[LINE_BYTES // 8] == 2  # tag 0, twice
    assert SignalCounters(lambda nbytes: None, 0, 2, lambda: None).signal_counter(0) is None
    assert (
        SignalCounters(lambda nbytes: None, 0, 1, lambda: None).signal_counter(7).reached()
    )  # alone: nothing to share
