"""Executes a schedule: prepares the messages of its task graph once, and restarts them every iteration.

No thread runs in the background; the caller drives the messages. Each :meth:`Execution.test` posts the messages that
may start (receives first), tests the oldest message of each channel, adds the contributions that have arrived, and
repeats this until nothing changes.

A device executes operations later, in order. An operation that depends on an addition is issued at once; a message that
depends on it is held back until a mark (an event) after that addition is done. So the device adds the second segment
while the first travels, and neither waits for the other.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.execution.reduction import (
    HOST,
    Combine,
    DeviceMark,
    EmptyReduction,
    Reduction,
    ReductionDevice,
    WireFormat,
)
from ringtrain.collectives.execution.task_graph import (
    ADD,
    COPY,
    FOLD,
    LOCAL,
    ROUND,
    SEND,
    Task,
    TaskGraph,
    make_task_graph,
)
from ringtrain.collectives.schedule import Schedule
from ringtrain.errors import TransportError
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import Patience, peers, wait_for

SEGMENT_BYTES = 1 << 18
# Between nodes: below 64 KiB, the eager limit of Open MPI's TCP. A longer message needs a rendezvous, whose answer
# queues behind the messages of the other direction: links then carry little more than half of their bandwidth.
BETWEEN_BYTES = 60_000
MESSAGES = "messages"
Allocate = Callable[[int, DTypeLike], Array]


def segment_for(transport: Transport) -> int:
    """Return the default length of segments in bytes."""
    return SEGMENT_BYTES if transport.nodes == 1 else BETWEEN_BYTES


class Execution(Reduction):
    """One schedule on one buffer: prepared once, started many times.

    transport:     moves the bytes; this rank is its rank
    buffer:        the flat array to reduce in place
    add:           add(a, b, y): y = a + b
    tag:           separates this execution's messages from others in flight; the same on all ranks
    segment_bytes: longest segment of a move; the same on all ranks
    device:        the device of ``add`` and ``wire``. Operations issued to it before a start come before the execution
    allocate:      allocate(count, dtype): memory for staging and scratch; the transport's own by default
    wire:          packs the messages; None sends them unpacked. A wire that rounds needs a schedule for it
    chunk_bounds:  start of each chunk, and the end; None: even chunks. A move needs chunks of equal length at both ends
    inputs:        this rank's further input arrays, if the schedule has any: as long as the buffer, and overwritten
    meanwhile:     called every 0.5 ms while the execution waits; None for nothing. It must not touch this execution
    """

    bytes_sent: int

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        buffer: Array,
        add: Combine,
        tag: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        device: ReductionDevice = HOST,
        allocate: Allocate | None = None,
        wire: WireFormat | None = None,
        chunk_bounds: Sequence[int] | None = None,
        inputs: Sequence[Array] = (),
        meanwhile: Callable[[], None] | None = None,
    ):
        self.algorithm, self.transport = schedule.name, MESSAGES
        self._name, self._tag = repr(schedule), tag
        self._rank, self._world_ranks = transport.rank, transport.world_ranks
        self._patience = transport.patience if meanwhile is None else _with(transport.patience, meanwhile)
        travels = wire.dtype if wire else buffer.dtype
        segment = max(segment_bytes // travels.itemsize, 1)
        graph = make_task_graph(
            schedule, transport.rank, buffer.size, segment, packed=wire is not None, chunk_bounds=chunk_bounds
        )
        spans, messages = _views(graph, [buffer, *inputs], travels, allocate or transport.scratch)
        self.bytes_sent = travels.itemsize * sum(task.stop - task.start for task in graph.tasks if task.kind == SEND)
        self._queues, self._gate = _Queues(graph), _DeviceGate(device)
        self._in_flight: dict[tuple[bool, int], deque[int]] = defaultdict(deque)
        self._tasks = [
            self._prepare(transport, *each, add, wire, device.copy)
            for each in zip(graph.tasks, spans, messages, strict=True)
        ]
        self._left = self._moved = 0

    def _prepare(
        self,
        transport: Transport,
        task: Task,
        span: Array,
        message: Array,
        add: Combine,
        wire: WireFormat | None,
        copy: Callable[[Array, Array], None],
    ) -> "_TaskState":
        work = None if task.kind == SEND else _work(task.kind, message, span, add, copy, wire)
        if task.kind in LOCAL:
            return _TaskState(EmptyReduction(), deque(), None, work)
        prepare = transport.sends if task.kind == SEND else transport.recvs
        pack = partial(wire.pack, span, message) if wire and task.kind == SEND else None
        handle = prepare([(task.peer, message)], self._tag)
        return _TaskState(handle, self._in_flight[task.kind == SEND, task.peer], pack, work)

    def start(self) -> None:
        """Begin: the buffer is final on this rank. It belongs to the execution until :meth:`test` returns True."""
        if self._left:
            raise TransportError(texts.STARTED_AGAIN.format(name=f"{self._name} with tag {self._tag}"))
        self._left, self._moved = len(self._tasks), 0
        self._gate.unmarked = True
        self._queues.restart()
        while self._post():
            pass

    def test(self) -> bool:
        """Make all the progress that is possible without waiting. Returns whether the execution is done."""
        while self._left and (self._post() or self._collect()):
            pass
        return not self._left

    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError after ``deadline_s`` seconds without progress."""
        wait_for(self.test, deadline_s, self.awaited, lambda: self._moved, self._patience)

    def free(self) -> None:
        for task in self._tasks:
            task.handle.free()

    @property
    def moved(self) -> int:
        return self._moved

    def _post(self) -> bool:
        """Start every task that may start, receives before sends. Returns whether there was one."""
        queues, gate = self._queues, self._gate
        local, recvs, sends = queues.local, queues.recvs, queues.sends
        if not (recvs or sends or local or gate.waiting):
            return False
        moved = self._moved
        while local:
            self._moved += 1
            self._finish(local.popleft())
        if gate.waiting:
            for i in gate.released():
                self._start_message(i)
        while recvs or sends:
            i = (recvs or sends).popleft()
            pack = self._tasks[i].pack
            if pack:
                pack()
                gate.unmarked = True
            if not gate.holds(i):
                self._start_message(i)
        return self._moved != moved

    def _start_message(self, i: int) -> None:
        task = self._tasks[i]
        task.handle.start()
        task.channel.append(i)
        self._moved += 1
        self._queues.release(self._queues.graph.started[i])

    def _collect(self) -> bool:
        """Process the messages that have ended, oldest first on each channel. Returns whether there was one."""
        moved, tasks, queues = self._moved, self._tasks, self._queues
        for channel in self._in_flight.values():
            while channel and tasks[channel[0]].handle.test():
                i = channel.popleft()
                self._moved += 1
                if queues.add_waits[i]:
                    queues.arrived.add(i)
                else:
                    self._finish(i)
        return self._moved != moved

    def _finish(self, i: int) -> None:
        """Finish a task that has arrived, and the arrived tasks that waited only for it."""
        ready = [i]
        while ready:
            i = ready.pop()
            work = self._tasks[i].work
            if work:
                work()
                self._gate.unmarked = True
            self._left -= 1
            ready += self._queues.finish(i)

    def awaited(self) -> str:
        """Return the peers that this rank waits for, in words."""
        late = [channel for channel, in_flight in self._in_flight.items() if in_flight]
        ends = ((False, "send"), (True, "receive"))  # a rank that receives awaits a send, and vice versa
        named = {verb: [peer for sending, peer in late if sending == sends] for sends, verb in ends}
        whom = " and ".join(
            f"{peers(self._world_ranks[rank] for rank in ranks)} to {verb}" for verb, ranks in named.items() if ranks
        )
        whom = whom or "its device"
        done, total = len(self._tasks) - self._left, len(self._tasks)
        rank = self._world_ranks[self._rank]
        return f"{whom}: rank {rank} in {self._name}, tag {self._tag}, {done} of {total} messages done"


@dataclass(frozen=True, slots=True)
class _TaskState:
    """A task at run time. ``channel``: its messages in flight. ``pack`` is None if nothing happens before the start,
    ``work`` if nothing happens after the arrival."""

    handle: Handle
    channel: deque[int]
    pack: Callable[[], None] | None
    work: Callable[[], None] | None


class _Queues:
    """The tasks that may start, by number, and the number of tasks that each other one waits for."""

    def __init__(self, graph: TaskGraph):
        self.graph = graph
        self.sends: deque[int] = deque()
        self.recvs: deque[int] = deque()
        self.local: deque[int] = deque()
        self._queue_of = [
            self.local if task.kind in LOCAL else self.sends if task.kind == SEND else self.recvs
            for task in graph.tasks
        ]
        self.arrived: set[int] = set()  # tasks whose message has arrived, but whose addition or unpacking still waits

    def restart(self) -> None:
        """Queue the tasks that wait for no other."""
        self._start_waits, self.add_waits = self.graph.start_waits.copy(), self.graph.add_waits.copy()
        for i, waits in enumerate(self._start_waits):
            if not waits:
                self._queue_of[i].append(i)

    def release(self, followers: list[int]) -> None:
        """Take one wait from each follower, and queue those without another."""
        for follower in followers:
            self._start_waits[follower] -= 1
            if not self._start_waits[follower]:
                self._queue_of[follower].append(follower)

    def finish(self, i: int) -> list[int]:
        """Release the followers of a task. Returns those that have arrived and now wait for nothing more."""
        self.release(self.graph.done_start[i])
        free = []
        for follower in self.graph.done_add[i]:
            self.add_waits[follower] -= 1
            if not self.add_waits[follower] and follower in self.arrived:
                self.arrived.remove(follower)
                free.append(follower)
        return free


class _DeviceGate:
    """Holds messages back until the device has done the operations that were issued before them."""

    def __init__(self, device: ReductionDevice):
        self._device = device
        self.unmarked = False  # whether an operation was issued to the device since its last mark
        self.waiting: deque[tuple[DeviceMark, int]] = deque()  # a task may start when its mark is done
        self._mark: DeviceMark | None = None  # the mark that must be done before a message starts; None: none

    def holds(self, i: int) -> bool:
        """Return whether the task must wait, and keep it if so."""
        if self.unmarked:  # operations issued until now must be done before this task, or any later one, starts
            mark, self.unmarked = self._device.mark(), False
            self._mark = mark if self.waiting or not mark.done() else None
        if self._mark is None:
            return False
        self.waiting.append((self._mark, i))
        return True

    def released(self) -> Iterator[int]:
        """Yield the tasks whose marks are done."""
        while self.waiting and self.waiting[0][0].done():
            yield self.waiting.popleft()[1]
        if not self.waiting:
            self._mark = None


def _with(patience: Patience, meanwhile: Callable[[], None]) -> Patience:
    def poll() -> None:
        patience.poll()
        meanwhile()

    return replace(patience, poll=poll)


def _work(
    kind: str,
    message: Array,
    span: Array,
    add: Combine,
    copy: Callable[[Array, Array], None],
    wire: WireFormat | None,
) -> Callable[[], None] | None:
    """Return the operation on the elements ``span`` after the arrival of ``message``; None if there is none."""
    if kind == FOLD or (kind == ADD and wire is None):
        return partial(add, span, message, span)
    if kind == COPY:
        return partial(copy, message, span)
    if wire is None:
        return None
    if kind == ROUND:
        return partial(_round, wire, message, span)
    return partial(wire.add if kind == ADD else wire.unpack, message, span)


def _round(wire: WireFormat, message: Array, span: Array) -> None:
    wire.pack(span, message)
    wire.unpack(message, span)


def _views(
    graph: TaskGraph, inputs: Sequence[Array], travels: np.dtype, allocate: Allocate
) -> tuple[list[Array], list[Array]]:
    """For each task return (target view, message view). Targets lie in an input array or in scratch; a message is the
    target itself, a staging slot of the wire type ``travels``, or another local range."""
    count = inputs[0].size
    scratch = [allocate(graph.scratch, inputs[0].dtype)] if graph.scratch else []
    staging = allocate(graph.slots * graph.segment, travels) if graph.segment else inputs[0][:0]
    arrays = [*inputs, *scratch]

    def elements(start: int, stop: int) -> Array:
        number = min(start // count, len(inputs))
        return arrays[number][start - number * count : stop - number * count]

    def message(task: Task) -> Array:
        if task.slot >= 0:
            start = task.slot * graph.segment
            return staging[start : start + task.stop - task.start]
        return elements(*(task.read or (task.start, task.stop)))

    return [elements(task.start, task.stop) for task in graph.tasks], [message(task) for task in graph.tasks]
