"""Programs of a node at work in shared memory: on threads, which share all of theirs."""

import itertools
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution import mapped as execution
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.execution.mapped import FINAL, WORKING, MappedOnDevice, device_operations, make_mapped, spans
from ringtrain.collectives.execution.reduction import HOST, Host
from ringtrain.collectives.shared_memory import node_program
from ringtrain.errors import StalledError
from ringtrain.ops.cpu.mapped import COMING, LEAVING
from ringtrain.transport.waiting import Patience
from tests.collectives.executions import any_bits, stalled
from tests.loopback.world import LoopbackWorld
from tests.says import says


def mapped(transport, buffer, op="sum", tag=0, dtype=None):
    twins, lane = transport.peer_views(buffer), transport.signal_counter(tag)
    return make_mapped(node_program(transport.size), transport, twins, lane, op, dtype or buffer.dtype.name, HOST)


def share(rank, count, dtype):
    return np.random.default_rng([rank, count]).standard_normal(count).astype(dtype)


def with_one_nan(total, op):
    """Of the sum of two NaNs a compiler chooses the bits, where the processor adds such numbers itself."""
    if op == "sum" and total.dtype in ("f4", "f8"):
        total[np.isnan(total)] = np.nan
    return total.tobytes()


def one_at_a_time(shares, combine):
    """The program's operations by NumPy."""
    size, count = len(shares), shares[0].size
    program, buffers = node_program(size), [share.copy() for share in shares]
    for tasks, (start, stop) in zip(program.tasks, spans(count, program.chunks), strict=True):
        for task in tasks:
            target, source = (buffers[chunk[0]][start:stop] for chunk in task[:2])
            if task.add:
                combine(target, source, target)
            else:
                np.copyto(target, source)
    return buffers[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", TYPES)
def test_every_type_and_operation_has_the_bits_of_numpy(name, size):
    """Also of several pieces, and of lengths that do not fill a vector."""
    numbers, counts = TYPES[name], (0, 1, size, 1009, 50_021)
    for op in ("sum", "max", "min"):

        def body(t, op=op):
            bits = []
            for tag, count in enumerate(counts):
                buffer = t.allocate(count, numbers.storage)
                run = mapped(t, buffer, op, tag, name)
                for _ in range(2):
                    buffer[:] = any_bits(t.rank, count, numbers)
                    run.run(20.0)
                bits.append(with_one_nan(buffer, op))
            return bits

        with np.errstate(all="ignore"):
            totals = [
                one_at_a_time([any_bits(rank, count, numbers) for rank in range(size)], numbers.combine(op))
                for count in counts
            ]
            wanted = [with_one_nan(total, op) for total in totals]
        assert LoopbackWorld(size).run(body) == [wanted] * size


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_same_bits_as_the_schedule_over_messages(size, dtype):
    """Every length of interest, in several pieces or none, again and again."""
    counts = sorted({0, 1, size - 1, size, size + 1, 101, 1009})

    def body(t):
        whole = t.allocate(sum(counts), dtype)
        ends = np.cumsum([0, *counts])
        buffers = [whole[a:b] for a, b in itertools.pairwise(ends)]
        apart = [np.zeros(count, dtype) for count in counts]
        shared = [mapped(t, buffer, tag=tag) for tag, buffer in enumerate(buffers)]
        sent = [Execution(make_schedule("sliced", size), t, other, np.add, tag) for tag, other in enumerate(apart)]
        for turn in range(3):
            for buffer, other in zip(buffers, apart, strict=True):
                buffer[:] = other[:] = share(t.rank + turn, buffer.size, dtype)
            for run in (*shared, *sent):
                run.start()
            for run in (*shared, *sent):
                run.wait(20.0)
            assert [buffer.tobytes() for buffer in buffers] == [other.tobytes() for other in apart]
        return [run.bytes_sent for run in shared], [run.bytes_sent for run in sent]

    for reached, sent in LoopbackWorld(size).run(body):
        assert reached[-1] == pytest.approx(sent[-1], rel=0.02)


def test_nobody_touches_a_buffer_before_all_have_come_or_leaves_before_all_are_done():
    """By hand, rank by rank, in one thread."""
    world = LoopbackWorld(2)
    ends = world.run(lambda t: (t, t.allocate(4, "f4")))
    runs = [mapped(t, buffer) for t, buffer in _together(ends)]
    (_, a), (_, b) = ends
    a[:], b[:] = 1, 2
    runs[0].start()
    assert not runs[0].test() and runs[0].moved == COMING
    assert a.tolist() == [1] * 4 and b.tolist() == [2] * 4
    runs[1].start()  # all have come: it does its own half, and waits for the other
    assert not runs[1].test() and runs[1].moved == LEAVING
    assert a.tolist() == [1, 1, 3, 3] and b.tolist() == [2, 2, 3, 3]
    assert runs[0].test() and runs[1].test()
    assert a.tolist() == b.tolist() == [3] * 4


class Gate(Host):
    """A device that is as far as ``open`` of its marks."""

    def __init__(self):
        self.open, self.marks = 0, 0

    def mark(self):
        self.marks += 1
        return Point(self, self.marks)


@dataclass
class Point:
    gate: Gate
    number: int

    def done(self):
        return self.number <= self.gate.open


def test_a_rank_says_what_it_has_done_when_its_device_has():
    """Neither that its buffer is final, nor that its part is done, before the mark behind it is."""
    ends = _together(LoopbackWorld(2).run(lambda t: (t, t.allocate(4, "f4"))))
    gate = Gate()

    def on_device(t, buffer):
        device, views, part = [gate, HOST][t.rank], t.peer_views(buffer), slice(2 * t.rank, 2 * t.rank + 2)
        work = device_operations(device, node_program(2), t.rank, lambda chunk: views[chunk[0]][part])
        return MappedOnDevice(t, t.signal_counter(0), device, work, 0)

    runs = [on_device(*end) for end in ends]
    for run in runs:
        run.start()
    assert (runs[0].test(), runs[0].moved) == (False, FINAL)
    assert (runs[1].test(), runs[1].moved) == (False, execution.COMING)
    with pytest.raises(StalledError, match=says("to start", "its device", "rank 0")):
        runs[0].wait(0.01)
    gate.open = 1
    assert (runs[0].test(), runs[0].moved) == (False, WORKING)
    assert (runs[1].test(), runs[1].moved) == (False, execution.LEAVING)
    with pytest.raises(StalledError, match=says("finish its part", "its device", "rank 0")):
        runs[0].wait(0.01)
    gate.open = 2
    assert runs[0].test() and runs[1].test()


def _together(ends):
    """Lanes are made in a meeting of all ranks: here their memory is there already."""
    block = np.zeros(1 << 14, np.uint8)
    for t, _ in ends:
        t._signal_counters._window = lambda nbytes: block
    return ends


@pytest.mark.timing
def test_a_late_rank_is_named_and_so_is_a_second_start():
    def body(t):
        return stalled(t, mapped(t, t.allocate(6, "f4")), says("all-reduce", "shared"))

    first, second, third = LoopbackWorld(3).run(body)
    assert second is None
    assert first == says("to start", "rank 1", "rank 0") and third == says("to start", "rank 1", "rank 2")


@pytest.mark.timing
def test_waiting_polls_the_mpi():
    """A rank that spins on counters would not notice what its MPI has to say."""
    polls, enough = [], threading.Event()

    def poll():
        polls.append(threading.current_thread().name)
        if len(polls) == 10:
            enough.set()

    def body(t):
        buffer = t.allocate(6, "f4")
        if t.rank == 0:
            t.patience = Patience(poll=poll)
        run = mapped(t, buffer)
        if t.rank == 1:
            assert enough.wait(60)
        run.start()
        run.wait(60)

    LoopbackWorld(2).run(body)
    assert len(polls) >= 10 and set(polls) == {"rank 0"}
