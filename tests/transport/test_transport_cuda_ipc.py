"""Memory of devices that ranks map alike: on threads, each with a device that is not there."""

import gc
import re
import threading

import numpy as np
import pytest

from ringtrain.errors import DeviceError, StalledError
from ringtrain.transport.device import cuda_ipc
from ringtrain.transport.device.cuda_ipc import CudaIpc, OpenedAllocations
from tests.fakes.host_cuda import HostRuntime
from tests.loopback.world import LoopbackWorld
from tests.says import says

FLOATS = 100


class Rank:
    """A rank with a device: what its tests do to its memory."""

    def __init__(self, t, runtime=None):
        self.t, self.runtime = t, runtime or HostRuntime()
        self.stream, self.ipc = self.runtime.stream(), CudaIpc(t, self.runtime)

    def whole(self, nbytes=4 * FLOATS):
        return self.runtime.whole(nbytes)

    def write(self, array, value):
        self.runtime.upload(np.full(array.size, value, array.dtype), array, self.stream)
        self.stream.synchronize()

    def read(self, array):
        host = np.zeros(array.size, array.dtype)
        self.runtime.download(array, host, self.stream)
        return host


def on_ranks(size, body, nodes=1, shares=True, make=HostRuntime):
    return LoopbackWorld(size, nodes, shares=shares).run(lambda t: body(Rank(t, make())))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_reads_and_writes_the_memory_of_all(size):
    def body(rank):
        assert rank.ipc.why == ""
        memory, other = rank.whole(), rank.whole()
        assert (rank.ipc.share(memory), rank.ipc.share(other)) == ("", "")
        floats = rank.runtime.view(memory, "f4")
        rank.write(floats, rank.t.rank)
        rank.t.barrier()
        twins = rank.ipc.peer_views(floats[7:40].reshape(3, 11)[1:])
        assert [(twin.size, twin.dtype) for twin in twins] == [(22, np.dtype("f4"))] * size
        assert [set(rank.read(twin)) for twin in twins] == [{float(r)} for r in range(size)]
        rank.t.barrier()
        for twin in twins:
            rank.write(twin[rank.t.rank : rank.t.rank + 1], 10 + rank.t.rank)
        rank.t.barrier()
        assert rank.read(floats)[18 : 18 + size].tolist() == [10.0 + r for r in range(size)]
        assert (rank.read(floats)[:18] == rank.t.rank).all()
        assert len(rank.ipc.peer_views(rank.runtime.view(other, "f8"))) == size
        assert rank.ipc.peer_views(rank.runtime.empty((5,), "f4")) is None
        rank.t.close()  # which closes what was made with it
        assert not rank.runtime._opened

    on_ranks(size, body)


def test_a_rank_alone_has_itself():
    def body(rank):
        span = rank.runtime.empty((5,), "f4")
        assert rank.ipc.share(rank.whole()) == rank.ipc.why == ""
        assert [twin is span for twin in rank.ipc.peer_views(span)] == [True]
        rank.ipc.close()

    on_ranks(1, body)
    on_ranks(2, body, nodes=2)


def refused(size=2, **how):
    """Why there are no twins: in one voice, and with nothing left open."""

    def body(rank):
        memory = rank.whole()
        assert rank.ipc.share(memory) == rank.ipc.why and rank.ipc.peer_views(memory) is None
        rank.ipc.close()
        return rank.ipc.why, len(rank.runtime._opened)

    said = on_ranks(size, body, **how)
    assert len(set(said)) == 1 and said[0][1] == 0
    return said[0][0]


def failing(ranks, what, instead):
    """Devices of which those of ``ranks`` do ``what`` by ``instead``, made from what it would be."""

    def make():
        runtime = HostRuntime()
        if int(threading.current_thread().name.split()[1]) in ranks:
            setattr(runtime, what, instead(runtime, getattr(runtime, what)))
        return runtime

    return make


def raising(error, after=0):
    """Instead of a method, one that raises the error after so many calls that it answers."""

    def instead(runtime, right):
        calls = []

        def method(*arguments):
            calls.append(arguments)
            if len(calls) > after:
                raise error
            return right(*arguments)

        return method

    return instead


def test_what_cannot_be_opened_is_a_reason():
    error = DeviceError("cudaErrorPeerAccessUnsupported")
    why = refused(3, make=failing({1}, "open", raising(error)))
    assert why == says("rank 0", "cudaErrorPeerAccessUnsupported", "rank 1")
    why = refused(make=failing({0, 1}, "share", raising(DeviceError("not supported"))))
    assert why == says("not supported", "ranks 0, 1")
    assert re.match(
        says("cannot", "opened"), refused(3, make=failing({2}, "open", raising(DeviceError("no more"), after=1)))
    )
    long = refused(make=failing({1}, "open", raising(DeviceError("é" * 3000))))
    assert says("rank 0").matches(long) and "éé" in long and long.endswith(", on rank 1")


def test_ranks_of_one_process_are_refused():
    device = HostRuntime()
    why = refused(make=lambda: device)
    assert why.startswith("memory of rank 1 cannot be opened: an array cannot be opened by the device that shared it")


def test_memory_of_a_pool_is_refused():
    def body(rank):
        pool = rank.runtime.empty((4 * FLOATS,), "u1")
        why = rank.ipc.share(pool if rank.t.rank else rank.whole())
        part = rank.ipc.share(rank.whole()[8:])
        return why, part, rank.ipc.peer_views(pool), len(rank.runtime._opened)

    for why, part, twins, opened in on_ranks(2, body):
        assert why == says("only a whole array, of Runtime.whole, can be shared", "rank 1")
        assert part.endswith("can be shared, on ranks 0, 1") and twins is None and opened == 0


def test_ranks_share_host_memory_and_ask_for_as_much():
    assert refused(shares=False) == says("exchange", "handles")
    said = on_ranks(2, lambda rank: rank.ipc.share(rank.whole(400 + 4 * rank.t.rank)))
    assert said == [says(400, 404, "node", "ask")] * 2


def test_process_namespaces_are_told_apart(monkeypatch):
    monkeypatch.setattr(cuda_ipc, "_namespace", lambda: threading.current_thread().name)
    assert refused() == says("--pid", "ranks 0, 1")
    monkeypatch.undo()
    monkeypatch.setattr(cuda_ipc, "NAMESPACE", "/nowhere")
    assert on_ranks(2, lambda rank: rank.ipc.why) == ["", ""]


@pytest.mark.parametrize(("copies", "words"), [(False, ("rank 0", "on rank 1")), (True, ("rank 1", "on rank 0"))])
def test_memory_that_reads_otherwise_and_writes_that_do_not_arrive_are_noticed(copies, words):
    """A device that opens other memory; one that opens a copy as it is then."""

    def other(runtime, right):
        def method(name, nbytes):
            memory, stream = right(name, nbytes), runtime.stream()
            whole = runtime.whole(nbytes)
            if copies:
                runtime.copy(memory, whole, stream)
                stream.synchronize()
            return whole

        runtime.close = lambda array: runtime._opened.clear()
        return method

    assert refused(make=failing({1}, "open", other)) == says(*words)


def test_an_allocation_is_opened_once_and_closed_with_its_last_user():
    owner, user = HostRuntime(), HostRuntime()
    whole, opened = owner.whole(64), OpenedAllocations(user)
    name = owner.share(whole)
    first = opened.open(name, 64)
    assert opened.open(name, 64) is first
    opened.close(name)
    assert len(user._opened) == 1
    opened.close(name)
    assert not user._opened
    with pytest.raises(DeviceError, match="is open already"):
        user.open(name, 64)
        user.open(name, 64)


@pytest.mark.timing
def test_owners_keep_their_memory_until_all_have_closed_it(monkeypatch):
    """Rank 1 is late to close: rank 0 does not wait for ever, and keeps its memory. The fake refuses to close what is
    gone."""
    ended = threading.Event()

    def body(rank):
        assert rank.ipc.share(rank.whole()) == ""
        gc.collect()
        rank.t.barrier()
        monkeypatch.setattr(cuda_ipc, "BARRIER_S", 0.2)  # from here on they are not to meet
        if rank.t.rank == 0:
            rank.ipc.close()  # in vain: it waits for rank 1, and not for ever
            ended.set()
        else:
            assert ended.wait(20)
            rank.ipc.close()
        return rank.ipc, rank.runtime  # else rank 0's would end with it

    assert [len(runtime._opened) for _, runtime in on_ranks(2, body)] == [0, 0]


@pytest.mark.timing
def test_a_rank_that_does_not_come_is_named(monkeypatch):
    def body(rank):
        rank.t.barrier()
        monkeypatch.setattr(cuda_ipc, "BARRIER_S", 0.05)
        if rank.t.rank == 0:
            late = says("rank 1", "name", "device")
            with pytest.raises(StalledError, match=late):
                rank.ipc.share(rank.whole())
        rank.t.barrier()

    on_ranks(2, body)
