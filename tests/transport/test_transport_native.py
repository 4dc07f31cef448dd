"""Collectives of an MPI's own and single messages, among threads: ranks that do not agree, and the guard."""

import numpy as np
import pytest

from ringtrain.errors import TransportError
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.transport.native_call import ALL_GATHER, ALL_TO_ALL, BROADCAST, GATHER, NativeCall, starts
from tests.loopback.world import LoopbackWorld
from tests.says import says


def run(transport, *given, **options):
    transport.native_start(NativeCall(*given, **options)).wait(10)


def test_kinds_that_differ():
    def body(transport):
        run(transport, ALL_GATHER if transport.rank else GATHER)

    with pytest.raises(TransportError, match="gather, all-gather"):
        LoopbackWorld(2).run(body)


def test_parts_that_differ():
    def body(transport):
        counts = [8, 8]
        wanted = [8, 16] if transport.rank == 0 else counts
        arrays = np.zeros(2), np.zeros(sum(wanted) // 8)
        run(transport, ALL_TO_ALL, *arrays, send_counts=counts, recv_counts=wanted)

    with pytest.raises(TransportError, match=says(1, 8, 0, 16, "expects", "tag")):
        LoopbackWorld(2).run(body)


def test_what_a_rank_gives_may_change_at_once():
    def body(transport):
        array = np.full(3, transport.rank + 1.0)
        handle = transport.native_start(NativeCall(BROADCAST, recv=array, root=0))
        handle.wait(10)
        assert array.tolist() == [1] * 3

    LoopbackWorld(3).run(body)


def test_starts_of_parts():
    assert starts([3, 0, 2]) == [0, 3, 3, 5] and starts([]) == [0]


def test_a_message_has_its_space_and_its_tag_alone():
    def body(transport):
        spaces = [transport.tag_space(), transport.tag_space()]
        if transport.rank:
            for number, space in enumerate(spaces):
                for tag in (0, 1):
                    space.send(np.array([number, tag]), 0, tag)
            transport.barrier()
            return
        arrays = {(number, tag): np.zeros(2, int) for number in (1, 0) for tag in (1, 0)}
        handles = [spaces[number].receive(array, None, tag) for (number, tag), array in arrays.items()]
        for handle in handles:
            handle.wait(10)
        assert all(tuple(array) == place for place, array in arrays.items())
        transport.barrier()

    LoopbackWorld(2).run(body)


def test_the_guard_numbers_them():
    def body(transport):
        guard = Guard(transport)
        run(GuardedTransport(transport, guard), BROADCAST)
        (entry,) = guard.recorder.read()[transport.rank].entries.values()
        guard.close()
        return entry.text, entry.done

    assert LoopbackWorld(2).run(body) == [(says(BROADCAST, 0), True)] * 2
