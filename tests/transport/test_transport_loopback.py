import threading

import numpy as np
import pytest

from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.native_call import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
    NativeCall,
)
from tests.loopback.world import LoopbackWorld
from tests.says import says

pytestmark = pytest.mark.timing

SIZES = [1, 2, 3, 5]


def run(size, body):
    """``body(transport)`` on each rank: threads, or a rank alone as the package has it."""
    return LoopbackWorld(size).run(body) if size > 1 else [body(Loopback())]


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_knows_its_place(size):
    places = run(size, lambda t: (t.rank, t.size, t.node, t.nodes, t.local_rank, t.local_size))
    assert places == [(rank, size, 0, 1, rank, size) for rank in range(size)]


def test_ranks_on_several_nodes():
    places = LoopbackWorld(5, nodes=2).run(lambda t: (t.node, t.nodes, t.local_rank, t.local_size))
    assert places == [(0, 2, 0, 3), (0, 2, 1, 3), (0, 2, 2, 3), (1, 2, 0, 2), (1, 2, 1, 2)]


@pytest.mark.parametrize("size", SIZES)
def test_collectives(size):
    def body(t):
        assert t.gather_json({"rank": t.rank, "ü": [t.rank]}) == [{"rank": r, "ü": [r]} for r in range(size)]
        span = np.arange(4.0) + t.rank
        t.native_allreduce(span)
        np.testing.assert_array_equal(span, size * np.arange(4.0) + size * (size - 1) / 2)
        for op, want in (("max", size - 1), ("min", 0)):
            span = np.full(3, t.rank, "f4")
            t.native_allreduce(span, op)
            assert (span == want).all()
        span = np.full(3, t.rank, "f4")
        handle = t.native_allreduce_start(span)
        handle.wait(5)
        assert handle.test() and (span == size * (size - 1) / 2).all()
        span = np.full((2, 2), t.rank)
        t.broadcast(span, root=size - 1)
        assert (span == size - 1).all()
        t.barrier()
        t.close()

    run(size, body)


def test_values_are_copied_as_json_would():
    def body(t):
        value = {"a": (1, 2)}
        (got, _) = t.gather_json(value)
        assert got == {"a": [1, 2]}
        with pytest.raises(TypeError):
            t.gather_json(object())

    LoopbackWorld(2).run(body)


def test_messages_match_first_in_first_out_for_each_tag():
    def body(t):
        spans = [np.full(3, i + 10 * t.rank, "f4") for i in range(4)]
        peer = 1 - t.rank
        if t.rank == 0:
            handles = [t.sends([(peer, spans[i])], tag=i % 2) for i in range(4)]
        else:
            handles = [t.recvs([(peer, spans[i])], tag=i % 2) for i in (1, 0, 3, 2)]
        for _ in range(3):
            for handle in handles:
                handle.start()
            for handle in handles:
                handle.wait(5)
        return [int(span[0]) for span in spans]

    assert LoopbackWorld(2).run(body) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_send_is_not_done_before_it_is_received():
    def body(t):
        span = np.ones(2)
        if t.rank == 0:
            send = t.sends([(1, span)], tag=4)
            assert send.test()  # never started
            send.start()
            assert not send.test()
            t.barrier()
            send.wait(5)
        else:
            t.barrier()
            recv = t.recvs([(0, span)], tag=4)
            recv.start()
            recv.wait(5)

    LoopbackWorld(2).run(body)


def test_missing_receives_stall_and_are_named():
    def body(t):
        if t.rank == 2:
            return
        handle = (t.sends if t.rank == 0 else t.recvs)([(2, np.ones(2))], tag=9)
        handle.start()
        awaited = says("rank 2", "receive" if t.rank == 0 else "send", 9)
        with pytest.raises(StalledError, match=says("0.02", awaited)):
            handle.wait(0.02)

    LoopbackWorld(3).run(body)


def test_lengths_that_differ_are_an_error():
    def body(t):
        handle = (t.sends if t.rank == 0 else t.recvs)([(1 - t.rank, np.ones(2 + t.rank))], tag=0)
        handle.start()
        handle.wait(5)

    with pytest.raises(TransportError, match=says(0, 16, 1, 24, "expects", "tag")):
        LoopbackWorld(2).run(body)


def test_the_first_error_ends_all_ranks():
    ends = []

    def body(t):
        if t.rank == 1:
            raise ZeroDivisionError("of rank 1")
        handle = t.recvs([(1, np.ones(2))], tag=0)
        try:
            handle.start()
            (handle.wait if t.rank == 0 else lambda _: t.barrier())(60)
        except TransportError as error:
            ends.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError, match="of rank 1"):
        LoopbackWorld(3).run(body)
    assert ends == ["another rank failed: of rank 1"] * 2


def test_a_rank_that_does_not_come_to_a_meeting():
    def body(t):
        if t.rank:
            t.barrier()

    with pytest.raises(StalledError, match=r"0\.05 s"):
        LoopbackWorld(3, meet_s=0.05).run(body)


def test_abort_carries_its_status():
    def body(t):
        if t.rank == 1:
            t.abort(3)
        t.barrier()

    with pytest.raises(SystemExit) as caught:
        LoopbackWorld(2).run(body)
    assert caught.value.code == 3


def test_windows_are_shared_within_a_node_alone():
    def body(t):
        window = t.node_window(10)
        assert window.dtype == np.uint8 and not window.any()
        t.node_barrier()
        window[t.local_rank] = t.rank + 1
        t.node_barrier()
        return window[:3].tolist()

    assert LoopbackWorld(4, nodes=2).run(body) == [[1, 2, 0], [1, 2, 0], [3, 4, 0], [3, 4, 0]]


def test_it_says_what_it_is():
    assert Loopback().describe() == says("process", "MPI")
    assert "3 threads" in LoopbackWorld(3).transport(0).describe()


def test_arenas_are_zeroed_host_memory_unless_told_otherwise():
    for default, own in (
        (Loopback(), Loopback(lambda count, dtype: np.full(count, 7, dtype))),
        (LoopbackWorld(1).transport(0), LoopbackWorld(1).transport(0, lambda count, dtype: np.full(count, 7, dtype))),
    ):
        assert not default.allocate(5, "f4").any()
        assert own.allocate(2, "f8").tolist() == [7, 7]


def test_sums_that_are_under_way_wait_for_nobody_and_keep_their_order():
    """Rank 0 begins three before the others begin one."""
    size, ahead = 3, threading.Event()

    def body(t):
        spans = [np.array([float(10 * turn + t.rank)]) for turn in range(3)]
        if t.rank:
            ahead.wait(5)
        handles = [t.native_allreduce_start(span) for span in spans]
        if not t.rank:
            assert not any(handle.test() for handle in handles)
            ahead.set()
        for handle in reversed(handles):
            handle.wait(5)
        return [float(span[0]) for span in spans]

    assert LoopbackWorld(size).run(body) == [[3.0, 33.0, 63.0]] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_tally_gives_each_ticket_once_and_loses_no_addition(size):
    def body(t):
        tally = t.counters(4)
        tickets = [tally.take(0, 1) for _ in range(50)]
        tally.add(2, np.array([1.0, t.rank]))
        t.barrier()
        found = tally.read()
        tally.clear()
        return tickets, found, tally.read()

    results = run(size, body)
    assert sorted(ticket for tickets, *_ in results for ticket in tickets) == list(range(50 * size))
    for _, found, cleared in results:
        np.testing.assert_array_equal(found, [50 * size, 0, size, size * (size - 1) / 2])
        assert not cleared.any()


def test_a_rank_alone_has_the_collectives_of_an_mpi():
    t, out = Loopback(), np.arange(4.0)
    for kind in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, GATHER, SCATTER):
        into = np.zeros(4)
        t.native_start(NativeCall(kind, out, into)).wait(5)
        assert into.tolist() == out.tolist()
    t.native_start(NativeCall(BROADCAST, recv=out)).wait(5)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(TransportError, match=r"\b32\b.*\b8\b.*all-gather"):
        t.native_start(NativeCall(ALL_GATHER, out, np.zeros(1)))


def test_a_rank_alone_shares_its_memory_with_nobody():
    t, span = Loopback(), np.zeros(3)
    assert t.peer_views(span) == [span] and t.share_mapped(span, "") and t.signal_counter(3).reached()
    assert not t.board(8).rows.any() and t.board(8).near == [0]
    window = t.node_window(5)
    assert window.dtype == np.uint8 and not window.any()


def test_a_rank_alone_has_messages_to_itself_for_services_alone():
    t = Loopback()
    box = t.service_messages()
    for text in (b"a", b"b"):
        box.send(0, 7, text)
    assert [box.receive(7), box.receive(7, 0), box.receive(7), box.receive(8)] == [(0, b"a"), (0, b"b"), None, None]
    t.sends([], 0).wait(5)
    with pytest.raises(StalledError, match="any rank"):
        t.tag_space().receive(np.zeros(1), None, 3).wait(0.01)


def test_groups_of_a_rank_alone_and_its_end():
    t, ends = Loopback(), []
    assert (t.group([0]).size, t.group([])) == (1, None)
    t.before_closing.append(lambda: ends.append(True))
    t.close()
    assert ends == [True]
    with pytest.raises(SystemExit) as caught:
        t.abort(3)
    assert caught.value.code == 3
