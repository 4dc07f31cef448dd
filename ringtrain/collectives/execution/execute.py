"""Execution of a schedule: a task graph's tasks as prepared messages, restarted every iteration, driven by the caller's
tests.

Nothing runs in the background and nothing blocks: each :meth:`Execution.test` posts the messages that may start
(receives first), tests the oldest message of each channel, adds the contributions that have arrived, and repeats this
until nothing changes.

A device executes operations later, in order. An operation that follows from an addition is issued at once; a message is
not: it is held back until a mark behind that addition is done. So the device adds the second segment while the first
travels, and neither waits for the other.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ringtrain.collectives import texts
from ringtrain.collectives.execution.plan import ADD, COPY, FOLD, LOCAL, ROUND, SEND, Task, TaskGraph, make_task_graph
from ringtrain.collectives.execution.reduction import HOST, Reduction, WireFormat
from ringtrain.collectives.schedule import Schedule
from ringtrain.errors import TransportError
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import peers, wait_for

SEGMENT_BYTES = 1 << 18
# Between nodes: below the 64 KiB that Open MPI's TCP sends at once. What is longer is announced first, and the answer
# queues behind what travels the other way: links then carry little more than half of what they could.
BETWEEN_BYTES = 60_000
MESSAGES = "messages"


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
    device:        the device of ``add`` and ``wire``, with copy(x, y) and mark() as in :class:`ringtrain.ops.base.Ops`.
                   Operations issued to it before a start come before the execution
    allocate:      allocate(count, dtype): memory for staging and scratch; the transport's own by default
    wire:          packs the messages; None sends them unpacked. A wire that rounds needs a schedule for it
    chunk_bounds:  start of each chunk, and the end; None: even chunks. A move needs chunks of equal length at both ends
    inputs:        this rank's further input arrays, if the schedule has any: as long as the buffer, and overwritten
    """

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        buffer,
        add: Callable,
        tag: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        device=HOST,
        allocate: Callable | None = None,
        wire: WireFormat | None = None,
        chunk_bounds: Sequence[int] | None = None,
        inputs: Sequence = (),
    ):
        self.algorithm, self.transport = schedule.name, MESSAGES
        self._name, self._rank, self._tag = repr(schedule), transport.rank, tag
        self._device, self._patience = device, transport.patience
        travels = wire.dtype if wire else buffer.dtype
        segment = max(segment_bytes // travels.itemsize, 1)
        graph = make_task_graph(
            schedule, transport.rank, buffer.size, segment, packed=wire is not None, chunk_bounds=chunk_bounds
        )
        spans, messages = _views(graph, [buffer, *inputs], travels, allocate or transport.scratch)
        self.bytes_sent = travels.itemsize * sum(p.stop - p.start for p in graph.tasks if p.kind == SEND)
        self._graph = graph
        self._sends, self._recvs, self._local = deque(), deque(), deque()  # numbers of tasks that may start
        self._held_back: deque[tuple] = deque()  # (mark, task): a task may start when its mark is done
        self._handles: list[Handle] = []
        self._in_flight: dict[tuple[bool, int], deque[int]] = defaultdict(deque)
        self._tasks = [
            self._prepare(transport, *each, add, wire) for each in zip(graph.tasks, spans, messages, strict=True)
        ]
        self._left = self._moved = 0
        self._arrived: set[int] = set()  # tasks whose message has arrived, but whose addition or unpacking still waits
        self._computing = False  # whether an operation was issued to the device since its last mark
        self._device_mark = None  # the mark that must be done before a message starts; None: none

    def _prepare(
        self, transport: Transport, task: Task, span, message, add: Callable, wire: WireFormat | None
    ) -> "_TaskState":
        if task.kind in LOCAL:
            work = _work(task.kind, message, span, add, self._device.copy, wire)
            return _TaskState(self._local, None, None, None, None, work)
        if task.kind == SEND:
            handle = self._kept(transport.sends([(task.peer, message)], self._tag))
            pack = wire and partial(wire.pack, span, message)
            return _TaskState(self._sends, self._in_flight[True, task.peer], pack, handle.start, handle.test, None)
        handle = self._kept(transport.recvs([(task.peer, message)], self._tag))
        work = _work(task.kind, message, span, add, self._device.copy, wire)
        return _TaskState(self._recvs, self._in_flight[False, task.peer], None, handle.start, handle.test, work)

    def _kept(self, handle: Handle) -> Handle:
        self._handles.append(handle)
        return handle

    def start(self) -> None:
        """Begin: the buffer is final on this rank. It belongs to the execution until :meth:`test` returns True."""
        if self._left:
            raise TransportError(texts.STARTED_AGAIN(name=texts.EXECUTION(schedule=self._name, tag=self._tag)))
        self._left, self._moved = len(self._tasks), 0
        self._start_waits, self._add_waits = self._graph.start_waits.copy(), self._graph.add_waits.copy()
        self._computing = True
        for i, waits in enumerate(self._start_waits):
            if not waits:
                self._tasks[i].queue.append(i)
        self.test()

    def test(self) -> bool:
        """Make all the progress that is possible without waiting. Returns whether the execution is done."""
        while self._left and (self._post() or self._collect()):
            pass
        return not self._left

    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError after ``deadline_s`` seconds without progress."""
        wait_for(self.test, deadline_s, self.awaited, lambda: self._moved, self._patience)

    def free(self) -> None:
        for handle in self._handles:
            handle.free()
        self._handles = []

    @property
    def moved(self) -> int:
        return self._moved

    def _post(self) -> bool:
        """Start every task that may start, receives before sends. Returns whether there was one."""
        local, recvs, sends, held_back = self._local, self._recvs, self._sends, self._held_back
        if not (recvs or sends or local or held_back):
            return False
        moved = self._moved
        while local:
            self._moved += 1
            self._finish(local.popleft())
        if held_back:
            self._start_held()
        while recvs or sends:
            i = (recvs or sends).popleft()
            task = self._tasks[i]
            if task.pack:
                task.pack()
                self._computing = True
            if self._computing:  # operations issued so far must be done before this task, or any later one, starts
                mark, self._computing = self._device.mark(), False
                self._device_mark = mark if held_back or not mark.done() else None
            if self._device_mark is not None:
                held_back.append((self._device_mark, i))
                continue
            task.start()
            task.channel.append(i)
            self._moved += 1
            self._release(self._graph.started[i])
        return self._moved != moved

    def _start_held(self) -> None:
        held_back = self._held_back
        while held_back and held_back[0][0].done():
            _, i = held_back.popleft()
            self._tasks[i].start()
            self._tasks[i].channel.append(i)
            self._moved += 1
            self._release(self._graph.started[i])
        if not held_back:
            self._device_mark = None

    def _collect(self) -> bool:
        """Take the messages that have ended, oldest first on each channel. Returns whether there was one."""
        moved, tasks = self._moved, self._tasks
        for channel in self._in_flight.values():
            while channel and tasks[channel[0]].test():
                i = channel.popleft()
                self._moved += 1
                if self._add_waits[i]:
                    self._arrived.add(i)
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
                self._computing = True
            self._left -= 1
            self._release(self._graph.done_start[i])
            ready += self._release_additions(self._graph.done_add[i])

    def _release_additions(self, followers: list[int]) -> list[int]:
        """Return the followers that have arrived and now wait for nothing more."""
        free = []
        for follower in followers:
            self._add_waits[follower] -= 1
            if not self._add_waits[follower] and follower in self._arrived:
                self._arrived.remove(follower)
                free.append(follower)
        return free

    def _release(self, followers: list[int]) -> None:
        for follower in followers:
            self._start_waits[follower] -= 1
            if not self._start_waits[follower]:
                self._tasks[follower].queue.append(follower)

    def awaited(self) -> str:
        """Return the peers that this rank waits for, in words."""
        late = [channel for channel, in_flight in self._in_flight.items() if in_flight]
        ends = ((False, texts.TO_SEND), (True, texts.TO_RECEIVE))  # a rank that receives awaits a send, and vice versa
        named = {end: [peer for sending, peer in late if sending == own] for own, end in ends}
        whom = " and ".join(end(ranks=peers(ranks)) for end, ranks in named.items() if ranks) or texts.ITS_DEVICE
        done, total = len(self._tasks) - self._left, len(self._tasks)
        return texts.AWAITED(whom=whom, rank=self._rank, schedule=self._name, tag=self._tag, done=done, total=total)


@dataclass(frozen=True, slots=True)
class _TaskState:
    """A task at run time. ``queue``: the queue in which it waits to start; ``channel``: its messages in flight.
    ``pack`` is None if nothing happens before the start, ``work`` if nothing happens after the arrival.
    """

    queue: deque
    channel: deque | None
    pack: Callable[[], None] | None
    start: Callable[[], None] | None
    test: Callable[[], bool] | None
    work: Callable[[], None] | None


def _work(
    kind: str, message, span, add: Callable, copy: Callable, wire: WireFormat | None
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


def _round(wire: WireFormat, message, span) -> None:
    wire.pack(span, message)
    wire.unpack(message, span)


def _views(graph: TaskGraph, inputs: Sequence, travels, allocate: Callable) -> tuple[list, list]:
    """For each task return (target view, message view). Targets lie in an input array or in scratch; a message is the
    target itself, a staging slot of the wire type ``travels``, or another local range.
    """
    count = inputs[0].size
    scratch = allocate(graph.scratch, inputs[0].dtype) if graph.scratch else None
    staging = allocate(graph.slots * graph.segment, travels) if graph.segment else None
    held_back = [*inputs, scratch]

    def elements(start: int, stop: int):
        place = min(start // count, len(inputs))
        return held_back[place][start - place * count : stop - place * count]

    def message(task: Task):
        if task.slot >= 0:
            start = task.slot * graph.segment
            return staging[start : start + task.stop - task.start]
        return elements(*(task.read or task.written))

    return [elements(task.start, task.stop) for task in graph.tasks], [message(task) for task in graph.tasks]
