"""Running a schedule: a plan's pieces as prepared messages, restarted every iteration, driven by whoever
tests it.

Nothing runs in the background and nothing blocks: each :meth:`Execution.test` posts what may start (receives
first), looks at the oldest message of each channel, adds what has arrived, and goes on until it can do no
more.

A device does what it is told later, in order. What follows from an addition, and is an operation itself, is issued at
once; a message is not: it is held until a mark behind that addition is done. So the device adds the second segment
while the first is on its way, and nobody waits for either.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ringtrain.collectives import texts
from ringtrain.collectives.execution.plan import ADD, COPY, FOLD, LOCAL, ROUND, SEND, Task, TaskGraph, make_plan
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
    """Where messages are cut unless somebody says otherwise."""
    return SEGMENT_BYTES if transport.nodes == 1 else BETWEEN_BYTES


class Execution(Reduction):
    """One schedule on one buffer: prepared once, started again and again.

    transport:     moves bytes; this rank is its rank
    buffer:        the flat array that is exchanged in place
    add:           add(a, b, y): y = a + b
    tag:           tells this execution's messages from those of others in flight: the same on all ranks
    segment_bytes: where moves are cut: the same on all ranks
    device:        what computes: add and wire are of it, and so are copy(x, y) and mark(), as
                   :class:`ringtrain.ops.base.Ops` has them. What was issued to it before a start comes before that
    allocate:      allocate(count, dtype): staging and scratch; the transport's own unless given
    wire:          how messages are packed; None: they are not. It may round, and then wants a schedule for that
    edges:         where the chunks begin, and the end; None: they are even. What one rank sends of a chunk must be as
                   long as where the other puts it
    lanes:         what this rank brings besides the buffer, where the schedule has more of it: arrays as long as that,
                   which are overwritten
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
        edges: Sequence[int] | None = None,
        lanes: Sequence = (),
    ):
        self.algorithm, self.transport = schedule.name, MESSAGES
        self._name, self._rank, self._tag = repr(schedule), transport.rank, tag
        self._device, self._patience = device, transport.patience
        travels = wire.dtype if wire else buffer.dtype
        segment = max(segment_bytes // travels.itemsize, 1)
        plan = make_plan(schedule, transport.rank, buffer.size, segment, packed=wire is not None, edges=edges)
        spans, messages = _views(plan, [buffer, *lanes], travels, allocate or transport.scratch)
        self.bytes_sent = travels.itemsize * sum(p.stop - p.start for p in plan.pieces if p.kind == SEND)
        self._plan = plan
        self._sends, self._recvs, self._local = deque(), deque(), deque()  # pieces that may start
        self._held: deque[tuple] = deque()  # (mark, piece): of those that may start when the device is so far
        self._handles: list[Handle] = []
        self._flying: dict[tuple[bool, int], deque[int]] = defaultdict(deque)
        self._pieces = [
            self._prepare(transport, *each, add, wire) for each in zip(plan.pieces, spans, messages, strict=True)
        ]
        self._left = self._moved = 0
        self._landed: set[int] = set()  # arrived, and not yet to be added or unpacked
        self._computing = False  # whether anything was issued to the device since it was last looked at
        self._mark = None  # how far the device must be before anything starts; None: it is

    def _prepare(
        self, transport: Transport, piece: Task, span, message, add: Callable, wire: WireFormat | None
    ) -> "_TaskState":
        if piece.kind in LOCAL:
            work = _work(piece.kind, message, span, add, self._device.copy, wire)
            return _TaskState(self._local, None, None, None, None, work)
        if piece.kind == SEND:
            handle = self._kept(transport.sends([(piece.peer, message)], self._tag))
            pack = wire and partial(wire.pack, span, message)
            return _TaskState(self._sends, self._flying[True, piece.peer], pack, handle.start, handle.test, None)
        handle = self._kept(transport.recvs([(piece.peer, message)], self._tag))
        work = _work(piece.kind, message, span, add, self._device.copy, wire)
        return _TaskState(self._recvs, self._flying[False, piece.peer], None, handle.start, handle.test, work)

    def _kept(self, handle: Handle) -> Handle:
        self._handles.append(handle)
        return handle

    def start(self) -> None:
        """The buffer is final on this rank: begin. It belongs to the execution until :meth:`test` says
        True."""
        if self._left:
            raise TransportError(texts.STARTED_AGAIN(name=texts.EXECUTION(schedule=self._name, tag=self._tag)))
        self._left, self._moved = len(self._pieces), 0
        self._start_waits, self._add_waits = self._plan.start_waits.copy(), self._plan.add_waits.copy()
        self._computing = True
        for i, waits in enumerate(self._start_waits):
            if not waits:
                self._pieces[i].queue.append(i)
        self.test()

    def test(self) -> bool:
        """Whether it is done; makes all the progress that can be made without waiting."""
        while self._left and (self._post() or self._collect()):
            pass
        return not self._left

    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError when nothing has moved for ``deadline_s`` seconds."""
        wait_for(self.test, deadline_s, self.awaited, lambda: self._moved, self._patience)

    def free(self) -> None:
        for handle in self._handles:
            handle.free()
        self._handles = []

    @property
    def moved(self) -> int:
        return self._moved

    def _post(self) -> bool:
        """Start every piece that may start, receives before sends. Whether there was one."""
        local, recvs, sends, held = self._local, self._recvs, self._sends, self._held
        if not (recvs or sends or local or held):
            return False
        moved = self._moved
        while local:
            self._moved += 1
            self._finish(local.popleft())
        if held:
            self._start_held()
        while recvs or sends:
            i = (recvs or sends).popleft()
            piece = self._pieces[i]
            if piece.pack:
                piece.pack()
                self._computing = True
            if self._computing:  # what was issued so far is done before this piece, or any other from now on, starts
                mark, self._computing = self._device.mark(), False
                self._mark = mark if held or not mark.done() else None
            if self._mark is not None:
                held.append((self._mark, i))
                continue
            piece.start()
            piece.channel.append(i)
            self._moved += 1
            self._release(self._plan.started[i])
        return self._moved != moved

    def _start_held(self) -> None:
        held = self._held
        while held and held[0][0].done():
            _, i = held.popleft()
            self._pieces[i].start()
            self._pieces[i].channel.append(i)
            self._moved += 1
            self._release(self._plan.started[i])
        if not held:
            self._mark = None

    def _collect(self) -> bool:
        """Take the messages that have ended, oldest first on each channel. Whether there was one."""
        moved, pieces = self._moved, self._pieces
        for channel in self._flying.values():
            while channel and pieces[channel[0]].test():
                i = channel.popleft()
                self._moved += 1
                if self._add_waits[i]:
                    self._landed.add(i)
                else:
                    self._finish(i)
        return self._moved != moved

    def _finish(self, i: int) -> None:
        """Do what is left of a piece that has arrived, and of those that have waited for it alone: they are done."""
        ready = [i]
        while ready:
            i = ready.pop()
            work = self._pieces[i].work
            if work:
                work()
                self._computing = True
            self._left -= 1
            self._release(self._plan.done_start[i])
            ready += self._let_add(self._plan.done_add[i])

    def _let_add(self, followers: list[int]) -> list[int]:
        """Those of the followers that have arrived, and now wait for nothing more."""
        free = []
        for follower in followers:
            self._add_waits[follower] -= 1
            if not self._add_waits[follower] and follower in self._landed:
                self._landed.remove(follower)
                free.append(follower)
        return free

    def _release(self, followers: list[int]) -> None:
        for follower in followers:
            self._start_waits[follower] -= 1
            if not self._start_waits[follower]:
                self._pieces[follower].queue.append(follower)

    def awaited(self) -> str:
        """Whom this rank waits for, in words."""
        late = [channel for channel, flying in self._flying.items() if flying]
        ends = ((False, texts.TO_SEND), (True, texts.TO_RECEIVE))  # what is awaited of a peer: the other end
        named = {end: [peer for sending, peer in late if sending == own] for own, end in ends}
        whom = " and ".join(end(ranks=peers(ranks)) for end, ranks in named.items() if ranks) or texts.ITS_DEVICE
        done, total = len(self._pieces) - self._left, len(self._pieces)
        return texts.AWAITED(whom=whom, rank=self._rank, schedule=self._name, tag=self._tag, done=done, total=total)


@dataclass(frozen=True, slots=True)
class _TaskState:
    """A piece as it is run. ``queue``: where it waits to be started; ``channel``: where it is in flight. There may be
    nothing to do before it is started (``pack``), and nothing when it has arrived (``work``)."""

    queue: deque
    channel: deque | None
    pack: Callable[[], None] | None
    start: Callable[[], None] | None
    test: Callable[[], bool] | None
    work: Callable[[], None] | None


def _work(
    kind: str, message, span, add: Callable, copy: Callable, wire: WireFormat | None
) -> Callable[[], None] | None:
    """What is done to the elements ``span`` when ``message``, which is about them, has arrived."""
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


def _views(plan: TaskGraph, lanes: Sequence, travels, allocate: Callable) -> tuple[list, list]:
    """For every piece the elements that it is about, in the buffer, which is the first of the lanes, in another of them
    or in scratch; and what comes to them, or travels: those elements themselves, their place in staging, whose type is
    ``travels``, or other elements of this rank."""
    count = lanes[0].size
    scratch = allocate(plan.scratch, lanes[0].dtype) if plan.scratch else None
    staging = allocate(plan.stages * plan.segment, travels) if plan.segment else None
    held = [*lanes, scratch]

    def elements(start: int, stop: int):
        place = min(start // count, len(lanes))
        return held[place][start - place * count : stop - place * count]

    def message(piece: Task):
        if piece.stage >= 0:
            start = piece.stage * plan.segment
            return staging[start : start + piece.stop - piece.start]
        return elements(*(piece.read or piece.written))

    return [elements(piece.start, piece.stop) for piece in plan.pieces], [message(piece) for piece in plan.pieces]
