"""Device memory between ranks, over threads and a device that is not there: staged, in pieces, in order."""

import threading

import numpy as np
import pytest

from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.device.moves import Direct
from ringtrain.transport.device.pinned import Pinned
from ringtrain.transport.device.staging import BUFFERS
from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from ringtrain.transport.waiting import wait_for
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.host_memory import DeviceArray, DeviceRefusal
from tests.loopback.world import LoopbackWorld
from tests.says import says

PIECE = 64


class Rank:
    """One rank with a device of its own."""

    def __init__(self, inner, hasty=False, segment_bytes=PIECE):
        self.inner, self.runtime = inner, HostRuntime(hasty=hasty)
        self.t = DeviceTransport(inner, self.runtime, STAGED, segment_bytes)
        self.stream = self.runtime.stream()
        self.rank, self.size = inner.rank, inner.size

    def put(self, host):
        """A device array with these values, which are there."""
        host = np.ascontiguousarray(host)
        array = self.t.allocate(host.size, host.dtype)
        self.set(array, host)
        return array

    def set(self, array, host):
        self.runtime.upload(np.ascontiguousarray(host), array, self.stream)
        self.stream.synchronize()

    def get(self, array):
        host = np.zeros(array.size, array.dtype)
        self.runtime.download(array, host, self.stream)
        return host

    def exchange(self, array, tag=0):
        """A handle that moves the array from rank 0 to rank 1."""
        return (self.t.sends if self.rank == 0 else self.t.recvs)([(1 - self.rank, array)], tag)

    def finish(self, *handles):
        for handle in handles:
            handle.wait(10)


def on_ranks(size, body, **options):
    return LoopbackWorld(size).run(lambda inner: body(Rank(inner, **options)))


def test_memory_is_the_devices_and_zero():
    def body(r):
        for make in (r.t.allocate, r.t.scratch):
            for count in (0, 1, 1000):
                array = make(count, "f4")
                assert isinstance(array, DeviceArray) and array.dtype == "f4" and array.shape == (count,)
                assert not r.get(array).any()
                with pytest.raises(DeviceRefusal):
                    np.asarray(array)
                assert r.t.peer_views(array) is None
        whole = r.t.allocate(64, np.uint8)
        assert len(r.runtime.share(whole)) == 64  # an allocation of its own

    on_ranks(2, body)


@pytest.mark.parametrize("hasty", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 16, 17, 16 * 2 + 1, 16 * BUFFERS, 16 * 11 + 3])
def test_a_ring_moves_spans_of_any_length_again_and_again(size, count, hasty):
    def body(r):
        right, left = (r.rank + 1) % size, (r.rank - 1) % size
        out, into = r.put(np.zeros(count, "f4")), r.put(np.zeros(count, "f4"))
        send, recv = r.t.sends([(right, out)], 3), r.t.recvs([(left, into)], 3)
        assert send.test() and recv.test()  # never started
        for turn in range(3):
            r.set(out, np.arange(count, dtype="f4") + 1000 * turn + r.rank)
            recv.start()
            send.start()
            r.finish(send, recv)
            assert send.test() and recv.test()
            np.testing.assert_array_equal(r.get(into), np.arange(count, dtype="f4") + 1000 * turn + left)

    on_ranks(size, body, hasty=hasty)


def test_start_does_nothing_that_takes_time():
    """Neither the copy nor the message is done when start returns, whoever has nothing else to do."""

    def body(r):
        array = r.put(np.arange(100, dtype="f4"))
        handle = r.exchange(array)
        r.runtime.pinned = r.runtime.whole = r.runtime.empty = None  # nothing is allocated any more
        r.t.barrier()
        handle.start()
        if r.rank == 0:
            names = [work.name for work in r.t._engine.down.work]  # of 7 pieces; it does one thing a time
            assert names.count("download") == BUFFERS - 1
        assert not handle.test()
        handle.wait(10)

    on_ranks(2, body)


def test_long_spans_take_few_host_buffers():
    """The memory of a channel does not grow with what passes through it."""

    def body(r):
        array = r.put(np.zeros(40 * PIECE, "u1"))
        halves = [array[: 20 * PIECE], array[20 * PIECE :]]
        taken = []
        r.t._engine.pinned.take = lambda n, take=r.t._engine.pinned.take: taken.append(n) or take(n)
        handles = [r.exchange(half) for half in halves]
        assert taken == [PIECE] * BUFFERS
        for handle in handles:
            handle.start()
        r.finish(*handles)

    on_ranks(2, body)


def test_handles_of_one_tag_arrive_in_the_order_they_were_started():
    """However early a later copy ends: both ranks look at the last one first, and host memory waits its turn."""

    def body(r):
        peer = 1 - r.rank
        lengths = [100, 3, 40]
        arrays = [r.put(np.arange(n, dtype="f4") + 100 * i + r.rank) for i, n in enumerate(lengths)]
        hosts = [np.full(5, 10 * i + r.rank, "i8") for i in range(len(lengths))]
        prepare = r.t.sends if r.rank == 0 else r.t.recvs
        handles = [prepare([(peer, hosts[i]), (peer, arrays[i])], 2) for i in range(len(lengths))]
        for _ in range(2):
            for handle in handles:
                handle.start()
            r.finish(*handles[::-1])
        return [r.get(array).tolist() for array in arrays], [host.tolist() for host in hosts]

    sent, received = on_ranks(2, body)
    assert sent == received


COLLECTIVES = {
    "barrier": lambda r: r.t.barrier(),
    "gather": lambda r: r.t.gather_json(1),
    "sum": lambda r: r.t.native_allreduce(np.zeros(3)),
    "started sum": lambda r: r.finish(r.t.native_allreduce_start(np.zeros(3))),
    "sum of device memory": lambda r: r.t.native_allreduce(r.put(np.zeros(3))),
    "started sum of device memory": lambda r: r.finish(r.t.native_allreduce_start(r.put(np.zeros(3)))),
    "broadcast": lambda r: r.t.broadcast(np.zeros(3)),
    "tally": lambda r: r.t.counters(1),
    "board": lambda r: r.t.board(8),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_in_a_collective_moves_on_what_another_waits_for_before_it_comes(name):
    """More segments than host buffers: most are still to be handed over when rank 0 comes to the collective."""

    def body(r):
        array = r.put(np.full(5 * BUFFERS * PIECE + 3, r.rank, "u1"))
        handle = r.exchange(array)
        handle.start()
        if r.rank == 1:
            r.finish(handle)
        COLLECTIVES[name](r)
        r.finish(handle)
        assert not r.get(array).any()

    on_ranks(2, body)


def test_waiting_for_something_else_moves_messages_on():
    def body(r):
        seen = r.t.node_window(1)
        array = r.put(np.full(9 * PIECE, r.rank, "u1"))
        handle = r.exchange(array)
        handle.start()
        if r.rank == 0:
            wait_for(lambda: seen[0], 10, lambda: "the other", patience=r.t.patience)
        handle.wait(10)
        seen[0] = 1

    on_ranks(2, body)


def test_bytes_between_nodes_are_counted_once():
    def body(inner):
        r = Rank(inner)
        others = [rank for rank in range(r.size) if rank != r.rank]
        span = r.put(np.zeros(100, "f4"))
        into = {rank: r.put(np.zeros(100, "f4")) for rank in others}
        recvs = r.t.recvs([(rank, into[rank]) for rank in others], 0)
        sends = r.t.sends([(rank, span) for rank in others], 0)
        for _ in range(3):
            recvs.start()
            sends.start()
            r.finish(recvs, sends)
        return r.t.links.between_bytes

    assert LoopbackWorld(3, nodes=[0, 0, 1]).run(body) == [1200, 1200, 2400]


@pytest.mark.timing
def test_missing_peers_are_named():
    def body(r):
        if r.rank == 2:
            r.t.barrier()
            return
        handle = (r.t.sends if r.rank == 0 else r.t.recvs)([(2, r.put(np.zeros(100, "f4")))], 9)
        handle.start()
        r.t.barrier()
        awaited = says("rank 2", "receive" if r.rank == 0 else "send", 9)
        with pytest.raises(StalledError, match=says("0.05", awaited)):
            handle.wait(0.05)

    on_ranks(3, body)


def test_an_end_in_host_memory_and_one_on_a_device_do_not_match():
    def body(r):
        array = r.put(np.zeros(100, "f4")) if r.rank == 0 else np.zeros(100, "f4")
        handle = r.exchange(array)
        handle.start()
        handle.wait(5)

    with pytest.raises(TransportError, match=says(0, 64, 1, 400, "expects", "tag")):
        on_ranks(2, body)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "f2"])
def test_collectives_of_device_memory(size, dtype):
    def body(r):
        total = size * (size - 1) / 2
        for op, want in (("sum", total), ("max", size - 1), ("min", 0)):
            span = r.put(np.full(50, r.rank, dtype))
            r.t.native_allreduce(span, op)
            assert (r.get(span) == want).all()
        span = r.put(np.full(50, r.rank, dtype))
        r.t.broadcast(span, root=size - 1)
        assert (r.get(span) == size - 1).all()
        host = np.full(3, r.rank, "f4")
        r.t.native_allreduce(host)
        assert (host == total).all()
        r.finish(r.t.native_allreduce_start(host))
        r.t.broadcast(host)
        assert (host == size * total).all()
        assert r.t.gather_json(r.rank) == list(range(size))
        assert (
            r.t.describe() == f"{size} threads of one process, no MPI, device memory staged through pinned host memory"
        )
        r.t.close()

    on_ranks(size, body)


def test_bfloat16_is_added_as_numbers():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

    def given_float32(reduce):
        def checked(span, *rest):
            assert span.size == 1 or span.dtype == np.float32  # an MPI would add anything else as bytes
            return reduce(span, *rest)

        return checked

    def body(r):
        for name in ("native_allreduce", "native_allreduce_start"):
            setattr(r.inner, name, given_float32(getattr(r.inner, name)))
        span = r.put(np.full(9, 1.5 + r.rank, bfloat16))
        r.t.native_allreduce(span)
        assert r.get(span).dtype == bfloat16 and (r.get(span).astype("f4") == 7.5).all()
        r.finish(r.t.native_allreduce_start(span))
        assert (r.get(span).astype("f4") == 22.5).all()

    on_ranks(3, body)


def test_sums_begin_in_the_order_they_were_started():
    """Rank 0 looks at the last one first, rank 1 at the first; and a collective comes after all of them."""

    def body(r):
        spans = [r.put(np.full(10 + i, 10 * i + r.rank, "f4")) for i in range(3)]
        for _ in range(2):
            handles = [r.t.native_allreduce_start(span) for span in spans]
            assert not handles[-1].test()
            if r.rank == 0:
                r.t.barrier()
            r.finish(*(handles[::-1] if r.rank == 0 else handles))
            if r.rank == 1:
                r.t.barrier()
        assert all(handle.test() for handle in handles)
        return [r.get(span)[0] for span in spans]

    assert on_ranks(2, body) == [[2, 42, 82]] * 2


def test_one_thread_may_test_while_another_starts():
    """The progress thread and the loop share an engine."""

    def body(r):
        peer, ending = 1 - r.rank, threading.Event()
        out, into = r.put(np.arange(500, dtype="f4") + r.rank), r.put(np.zeros(500, "f4"))
        send, recv = r.t.sends([(peer, out)], 0), r.t.recvs([(peer, into)], 0)

        def look():
            while not ending.is_set():
                send.test()

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(3):
            recv.start()
            send.start()
            r.finish(recv, send)
        ending.set()
        thread.join()
        assert (r.get(into) == np.arange(500) + peer).all()

    on_ranks(2, body)


def test_a_wait_in_a_group_progresses_the_messages_of_the_world():
    """In the world rank 2 sends to rank 1 more pieces than there are buffers, and waits in the group: its peer has the
    same number and tag in both."""

    def body(r):
        group, span = (
            r.t.group([2, 1]),
            r.put(np.arange(PIECE * BUFFERS * 3.0) if r.rank == 2 else np.zeros(PIECE * BUFFERS * 3)),
        )
        if group is None:
            return None
        more = r.put(np.full(PIECE, r.rank, "f4"))
        if r.rank == 2:
            send, answer = r.t.sends([(1, span)], 5), group.recvs([(1, more)], 5)
            for handle in (send, answer):
                handle.start()
            r.finish(answer)
        else:
            recv, answer = r.t.recvs([(2, span)], 5), group.sends([(0, more)], 5)
            recv.start()
            r.finish(recv)
            answer.start()
            r.finish(answer)
        return r.get(span)[-1], r.get(more)[0]

    assert on_ranks(3, body) == [None, (PIECE * BUFFERS * 3 - 1, 1), (PIECE * BUFFERS * 3 - 1, 1)]


def test_a_late_rank_of_a_group_is_named_as_in_the_world():
    def body(r):
        group = r.t.group([2, 1])
        if group is not None and group.rank == 0:
            handle = group.recvs([(1, r.put(np.zeros(3)))], 5)
            handle.start()
            with pytest.raises(StalledError, match="rank 1 to send"):
                handle.wait(0.02)

    on_ranks(3, body)


class Recorded:
    """An inner transport whose handles write down what is asked of them, and by which thread."""

    def __init__(self):
        self.asked = []

    def sends(self, moves, tag):
        self.moves = moves
        return self

    def __getattr__(self, what):
        return lambda *_: self.asked.append((what, threading.current_thread().name))


def test_every_thread_that_calls_the_mpi_is_put_on_the_device_once():
    runtime, inner, entered = HostRuntime(), Recorded(), []
    runtime.memory = lambda: entered.append(threading.current_thread().name)
    array, host = runtime.empty((10,), "f4"), np.zeros(3)
    handle = Direct(inner, runtime).sends([(0, array[2:5]), (1, host)], 5)
    (_, raw), (_, same) = inner.moves
    assert (raw.address, raw.size) == (runtime.address(array) + 8, 12) and same is host
    for name, act in (("a", handle.start), ("b", handle.test), ("c", lambda: handle.wait(1))):
        thread = threading.Thread(target=lambda act=act: [act(), act()], name=name)
        thread.start()
        thread.join()
    handle.free()
    main = threading.current_thread().name
    assert entered == [main, "a", "b", "c"]
    twice = [(what, name) for what, name in (("start", "a"), ("test", "b"), ("wait", "c")) for _ in range(2)]
    assert inner.asked == [*twice, ("free", main)]


def test_pinned_memory_is_cut_from_blocks_and_used_again():
    blocks = []

    def allocate(nbytes):
        blocks.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    pinned = Pinned(allocate, block_bytes=1000)
    first, second = pinned.take(100), pinned.take(100)
    assert not np.shares_memory(first, second) and first.size == second.size == 100
    assert (second.ctypes.data - first.ctypes.data) % 64 == 0 and blocks == [1000]
    pinned.give(first)
    assert pinned.take(100).ctypes.data == first.ctypes.data
    large = pinned.take(5000)
    assert large.size == 5000 and blocks == [1000, 5000 // 64 * 64 + 64] and pinned.nbytes == sum(blocks)
