"""Executions of schedules on a loopback world, in which every send is synchronous; and the numbers that they add."""

import numpy as np
import pytest

from ringtrain.collectives.catalogue import SCHEDULES
from ringtrain.collectives.execution.execute import Execution
from ringtrain.errors import StalledError, TransportError
from tests.loopback.world import LoopbackWorld

SIZES = [1, 2, 3, 4, 5, 7, 8]
NODES = [(1, 1), (2, 2), (1, 3), (4, 2, 1)]
NESTED = ["tree:ring", "sliced:circulant", "double-tree:butterfly"]  # schedules within nodes and across them
OWNED = [name for name in SCHEDULES if name != "recursive-doubling"]
DEADLINE_S = 20.0
MOST = 251  # sums of smaller whole numbers are exact in any order and type


def exact(rank, count, dtype="f4", times=1, most=MOST):
    return ((np.arange(count) * 7 + rank * 13) % most * times).astype(dtype)


def total(size, count, dtype="f4", times=1, most=MOST):
    return sum(exact(rank, count, dtype, times, most) for rank in range(size))


def normal(size, count, seed=0):
    return [np.random.default_rng([seed, rank]).standard_normal(count).astype("f4") for rank in range(size)]


def any_bits(rank, count, numbers):
    """Elements of any bits: NaNs with and without a sign, infinities, zeros of both signs, subnormal numbers."""
    bits = np.random.default_rng([rank, count]).integers(0, 256, count * numbers.itemsize, np.uint8)
    array = bits.view(numbers.storage).copy()
    if not numbers.integral:
        for every, value in ((7, -0.0), (5, 0.0), (11, np.inf)):
            array[rank::every] = numbers.encode(np.float32(value))
    return array


def executed(schedule, inputs, segment_bytes=1 << 18, wrap=lambda transport: transport, wire=None):
    """The buffers of all ranks after one execution, which begins with ``inputs[rank]``."""

    def body(transport):
        buffer = inputs[transport.rank].copy()
        Execution(schedule, wrap(transport), buffer, np.add, segment_bytes=segment_bytes, wire=wire).run(DEADLINE_S)
        return buffer

    return LoopbackWorld(schedule.size).run(body)


def check_restarts(schedule, segment_bytes, most=MOST, wire=None):
    """Start one execution again and again: it allocates once."""

    def body(transport):
        counts = []

        def allocate(count, dtype):
            counts.append(count)
            return transport.scratch(count, dtype)

        buffer = np.zeros(1001, "f4")
        run = Execution(schedule, transport, buffer, np.add, segment_bytes=segment_bytes, allocate=allocate, wire=wire)
        allocations = len(counts)
        for times in range(1, 6):
            buffer[:] = exact(transport.rank, 1001, "f4", times, most)
            run.run(DEADLINE_S)
            np.testing.assert_array_equal(buffer, total(schedule.size, 1001, "f4", times, most))
        assert len(counts) == allocations <= 2  # scratch and staging

    LoopbackWorld(schedule.size).run(body)


def stalled(transport, run, refusal, absent=1):
    """What a rank says that waits for one which does not come; that one says nothing. Starting twice is refused."""
    if transport.rank != absent:
        run.start()
    transport.barrier()  # all others have started
    if transport.rank == absent:
        transport.barrier()
        return None
    with pytest.raises(TransportError, match=refusal):
        run.start()
    with pytest.raises(StalledError) as error:
        run.wait(0.05)
    transport.barrier()
    return str(error.value)
