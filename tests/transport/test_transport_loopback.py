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
from tests.mpi.programs import moves
from tests.says import says

pytestmark = pytest.mark.timing

SIZES = [1, 2, 3, 5]


def run(size, body):
    """``body(transport)`` on each rank: threads, or a rank alone as the package has it."""
    return LoopbackWorld(size).run(body) if size > 1 else [body(Loopback())]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", moves.ANYWHERE, ids=lambda check: check.__name__)
def test_what_transports_of_an_mpi_do(check, size):
    def body(t):
        assert (t.rank, t.size, t.node, t.nodes, t.local_rank, t.local_size) == (t.rank, size, 0, 1, t.rank, size)
        assert t.describe() == (says(f"{size} threads") if size > 1 else says("process", "MPI"))
        check(t)
        t.barrier()
        t.close()

    run(size, body)


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


def test_arenas_are_zeroed_host_memory_unless_told_otherwise():
    for default, filled in (
        (Loopback(), Loopback(lambda count, dtype: np.full(count, 7, dtype))),
        (LoopbackWorld(1).transport(0), LoopbackWorld(1).transport(0, lambda count, dtype: np.full(count, 7, dtype))),
    ):
        assert not default.allocate(5, "f4").any()
        assert filled.allocate(2, "f8").tolist() == [7, 7]


def test_a_rank_alone_has_the_collectives_of_an_mpi_and_shares_its_memory_with_nobody():
    t, out = Loopback(), np.arange(4.0)
    for kind in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, GATHER, SCATTER):
        into = np.zeros(4)
        t.native_start(NativeCall(kind, out, into)).wait(5)
        assert into.tolist() == out.tolist()
    t.native_start(NativeCall(BROADCAST, recv=out)).wait(5)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(TransportError, match=r"\b32\b.*\b8\b.*all-gather"):
        t.native_start(NativeCall(ALL_GATHER, out, np.zeros(1)))
    span = np.zeros(3)
    assert t.peer_views(span) == [span] and t.share_mapped(span, "") and t.signal_counter(3).reached()
    assert not t.board(8).rows.any() and t.board(8).near == [0]
    window = t.node_window(5)
    assert window.dtype == np.uint8 and not window.any()


def test_a_rank_alone_has_messages_to_itself_for_services_alone_groups_and_an_end():
    t, ends = Loopback(), []
    box = t.service_messages()
    for text in (b"a", b"b"):
        box.send(0, 7, text)
    assert [box.receive(7), box.receive(7, 0), box.receive(7), box.receive(8)] == [(0, b"a"), (0, b"b"), None, None]
    t.sends([], 0).wait(5)
    with pytest.raises(StalledError, match="any rank"):
        t.tag_space().receive(np.zeros(1), None, 3).wait(0.01)
    assert (t.group([0]).size, t.group([])) == (1, None)
    t.before_closing.append(lambda: ends.append(True))
    t.close()
    assert ends == [True]
    with pytest.raises(SystemExit) as caught:
        t.abort(3)
    assert caught.value.code == 3
