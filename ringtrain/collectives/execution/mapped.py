"""Execution of a two-shot program in memory that the ranks of a node share: wait for all, add and write, wait for all.

On a host it is one compiled call, which runs the program's operations as they are. On a device, adding a chunk and
writing it to all buffers is one operation on the memory of all ranks. A rank signals its arrival when its own buffer is
final, and its end when its device is done: so there are two more waits.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ringtrain.arrays import Array, array_address
from ringtrain.collectives import texts
from ringtrain.collectives.execution.node_program import BufferChunk, NodeProgram, one_pass_order
from ringtrain.collectives.execution.reduction import DeviceMark, Reduction, ReductionDevice
from ringtrain.collectives.schedule import bounds
from ringtrain.errors import TransportError
from ringtrain.ops.cpu.mapped import COMING as CALL_COMING
from ringtrain.ops.cpu.mapped import MappedCall, MappedOperation
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.waiting import peers, wait_for

SHARED = "an all-reduce in shared memory"  # in messages
AT_ONCE = 8  # most arrays for a device's add_all
# What a rank waits for: nothing; its buffer to be final; all ranks to come; messages between nodes, if there are
# several; its own operations; all ranks to be done.
IDLE, FINAL, COMING, MOVING, WORKING, LEAVING = range(6)

Work = list[tuple[Callable[..., None], tuple]]  # functions with their arguments


def make_mapped(
    program: NodeProgram,
    transport: Transport,
    views: Sequence[Array],
    counter: SignalCounter,
    op: str,
    dtype: str,
    device: ReductionDevice,
    inputs: Sequence[Sequence[Array]] = (),
) -> Reduction:
    """Return the all-reduce of one buffer by a two-shot program. Collective over the node.

    views:   the buffer on every rank of the node, by local rank (:meth:`Transport.peer_views`)
    counter: signal counter, used only here at the time
    op:      sum, max or min
    dtype:   one of :data:`ringtrain.ops.cpu.mapped.TYPES`
    device:  computes. Outside host memory ``op`` is its sum; a host lends its threads
    inputs:  further input arrays, if the program has any: the views of each, as of the buffer. They are overwritten
    """
    rank = transport.neighbours.index(transport.rank)
    start, stop = spans(views[rank].size, program.chunks)[rank]
    # It reads the others' contributions to its chunk, and writes the sum to their buffers.
    moved = sum(program.inputs_of) - program.inputs_of[rank] + program.size - 1
    nbytes = moved * (stop - start) * views[rank].dtype.itemsize
    arrays = [views, *inputs]

    def at(chunk: BufferChunk) -> Array:
        return arrays[chunk[1] // program.chunks][chunk[0]][start:stop]

    if not on_host(views):
        return MappedOnDevice(transport, counter, device, device_operations(device, program, rank, at), nbytes)
    operations = [
        MappedOperation(op if task.add else "copy", *(array_address(np.asarray(at(place))) for place in task[:2]))
        for task in program.tasks[rank]
    ]
    spins = transport.patience.spin_s > 0
    call = MappedCall(dtype, stop - start, counter.addresses, rank, operations, spins, device.helpers)
    return Mapped(transport, counter, call, arrays, nbytes)


class Mapped(Reduction):
    """A two-shot program on one buffer in host memory. call: runs it; arrays: the memory whose addresses it has"""

    algorithm = transport = "mapped"

    def __init__(self, transport: Transport, counter: SignalCounter, call: MappedCall, arrays: object, nbytes: int):
        self._world, self._counter, self._arrays, self.bytes_sent = transport, counter, arrays, nbytes
        self._call, self._state = call, call.state

    def start(self) -> None:
        if self._state[0]:
            raise self._started_again()
        self._call.test()

    def test(self) -> bool:
        return not self._state[0] or bool(self._call.test())

    def wait(self, deadline_s: float) -> None:
        if self._state[0] and not self._call.wait():
            self._wait_on(deadline_s)

    def run(self, deadline_s: float) -> None:
        if self._state[0]:
            raise self._started_again()
        if not self._call.wait():
            self._wait_on(deadline_s)

    def _started_again(self) -> TransportError:
        return TransportError(texts.STARTED_AGAIN.format(name=SHARED))

    def _wait_on(self, deadline_s: float) -> None:
        wait_for(self._call.rest, deadline_s, self._awaited, lambda: self.moved, self._world.patience, sleeps=True)

    @property
    def moved(self) -> int:
        return self._state[0]

    def _awaited(self) -> str:
        late = awaited_ranks(self._world, self._counter)
        awaited = texts.AWAITED_START if self._state[0] == CALL_COMING else texts.AWAITED_END
        return awaited.format(whom=late, name=SHARED, rank=self._world.world_ranks[self._world.rank])


class NodeReduction(Reduction):
    """An all-reduce with two waits for all ranks of the node, and this rank's work between them."""

    _called: str  # its name in messages

    def __init__(self, transport: Transport, counter: SignalCounter, device: ReductionDevice):
        self._world, self._counter, self._device = transport, counter, device
        self._state = IDLE
        self._mark: DeviceMark

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError(texts.STARTED_AGAIN.format(name=self._called))
        self._mark = self._device.mark()
        self._state = FINAL
        self.test()

    def test(self) -> bool:
        if self._state == FINAL and self._mark.done():
            self._counter.advance()
            self._state = COMING
        if self._state == COMING and self._counter.reached():
            self._state = MOVING
        if self._state == MOVING and self._move():
            self._mark = self._device.mark()
            self._state = WORKING
        if self._state == WORKING and self._mark.done():
            self._counter.advance()
            self._state = LEAVING
        if self._state == LEAVING and self._counter.reached():
            self._state = IDLE
        return self._state == IDLE

    @abstractmethod
    def _move(self) -> bool:
        """Do as much of this rank's work as is possible without waiting. Returns whether all is issued."""

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, lambda: self.moved, self._world.patience)

    @property
    def moved(self) -> int:
        return self._state

    def _awaited(self) -> str:
        late = awaited_ranks(self._world, self._counter)
        awaited = texts.AWAITED_START if self._state in (FINAL, COMING) else texts.AWAITED_END
        whom = "its device" if self._state in (FINAL, WORKING) else late
        return awaited.format(whom=whom, name=self._called, rank=self._world.world_ranks[self._world.rank])


def awaited_ranks(transport: Transport, counter: SignalCounter) -> str:
    """Return the name of the ranks of the node that have not advanced as often as this one."""
    names = transport.world_ranks
    return peers([names[transport.neighbours[local_rank]] for local_rank in counter.late()])


class MappedOnDevice(NodeReduction):
    """A two-shot program on one buffer in the memory of devices. work: its operations"""

    algorithm = transport = "mapped"
    _called = SHARED

    def __init__(self, transport: Transport, counter: SignalCounter, device: ReductionDevice, work: Work, nbytes: int):
        super().__init__(transport, counter, device)
        self._work, self.bytes_sent = work, nbytes

    def _move(self) -> bool:
        run_operations(self._work)
        return True


def run_operations(work: Work) -> None:
    """Call the functions with their arguments."""
    for function, arguments in work:
        function(*arguments)


def on_host(views: Sequence[Array]) -> bool:
    """Whether the views lie in host memory."""
    return isinstance(views[0], np.ndarray)


def sum_into(device: ReductionDevice, sources: Sequence[Array], targets: Sequence[Array]) -> Work:
    """Return the sum of the sources into every target, as one device operation."""
    return [(device.add_all, (sources, targets))] if sources[0].size and targets else []


def spans(count: int, chunks: int) -> list[tuple[int, int]]:
    """Return (start, stop) of every chunk of a buffer of ``count`` elements."""
    return list(pairwise(bounds(count, chunks)))


def device_operations(
    device: ReductionDevice, program: NodeProgram, rank: int, at: Callable[[BufferChunk], Array]
) -> Work:
    """Return the tasks on a device: one operation if the program adds one contribution after another; otherwise one for
    each addition; the last writes the sum to all targets. ``at(chunk)``: the elements of the chunk there."""
    order = one_pass_order(program, rank)
    if order is not None:
        inputs = [at((source, rank)) for source in order]
        return sum_into(device, inputs, inputs)
    additions = [(at(task.target), at(task.source)) for task in program.tasks[rank] if task.add]
    copied = [at(task.target) for task in program.tasks[rank] if not task.add]
    targets = [[target] for target, _ in additions[:-1]] + [[additions[-1][0], *copied]]
    return [work for pair, into in zip(additions, targets, strict=True) for work in sum_into(device, pair, into)]
