"""Running a schedule: a plan's pieces as prepared messages, restarted every iteration, driven by whoever
tests it.

Nothing runs in the background and nothing blocks: each :meth:`Execution.test` posts what may start (receives
first), looks at the oldest message of each channel, adds what has arrived, and goes on until it can do no
more.
"""

from collections import deque
from collections.abc import Callable

from ringtrain.collectives.plan import ADD, FOLD, LOCAL, SEND, Piece, Plan, make_plan
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for

SEGMENT_BYTES = 1 << 18
MESSAGES = "messages"


def _nothing() -> None:
    pass


class Execution(Reduction):
    """One schedule on one buffer: prepared once, started again and again.

    transport:     moves bytes; this rank is its rank
    buffer:        the flat array that is exchanged in place
    add:           add(a, b, y): y = a + b
    tag:           tells this execution's messages from those of others in flight: the same on all ranks
    segment_bytes: where moves are cut: the same on all ranks
    synchronize:   waits for what is still being computed; called before a message takes or replaces computed
                   data
    allocate:      allocate(count, dtype): staging and scratch; the transport's own unless given
    """

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        buffer,
        add: Callable,
        tag: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        synchronize: Callable[[], None] = _nothing,
        allocate: Callable | None = None,
    ):
        self.algorithm, self.transport = schedule.name, MESSAGES
        self._name, self._rank, self._tag = repr(schedule), transport.rank, tag
        self._add, self._synchronize = add, synchronize
        itemsize = buffer.dtype.itemsize
        plan = make_plan(schedule, transport.rank, buffer.size, max(segment_bytes // itemsize, 1))
        self._plan, self._pieces = plan, plan.pieces
        self._spans, self._messages = _views(plan, buffer, allocate or transport.scratch)
        self._handles = [
            self._prepare(transport, piece, message) for piece, message in zip(plan.pieces, self._messages, strict=True)
        ]
        self.bytes_sent = itemsize * sum(p.stop - p.start for p in plan.pieces if p.kind == SEND)
        self._flying: dict[tuple[bool, int], deque[int]] = {
            (p.kind == SEND, p.peer): deque() for p in plan.pieces if p.kind not in LOCAL
        }
        self._sends, self._recvs, self._local = deque(), deque(), deque()  # pieces that may start
        self._left = self._moved = 0
        self._landed: set[int] = set()  # arrived, and not yet to be added
        self._computing = False

    def _prepare(self, transport: Transport, piece: Piece, message):
        """The handle of the piece's message, if it is one."""
        if piece.kind in LOCAL:
            return None
        return (transport.sends if piece.kind == SEND else transport.recvs)([(piece.peer, message)], self._tag)

    def start(self) -> None:
        """The buffer is final on this rank: begin. It belongs to the execution until :meth:`test` says
        True."""
        if self._left:
            raise TransportError(f"{self._name} with tag {self._tag} was started again before it was done")
        self._left, self._moved = len(self._pieces), 0
        self._start_waits, self._add_waits = self._plan.start_waits.copy(), self._plan.add_waits.copy()
        self._computing = True
        for i, waits in enumerate(self._start_waits):
            if not waits:
                self._free(i)
        self.test()

    def test(self) -> bool:
        """Whether it is done; makes all the progress that can be made without waiting."""
        while self._left and (self._post() or self._collect()):
            pass
        return not self._left

    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError when nothing has moved for ``deadline_s`` seconds."""
        wait_for(self.test, deadline_s, self._awaited, progress=lambda: self._moved)

    def free(self) -> None:
        for handle in self._handles:
            if handle is not None:
                handle.free()

    @property
    def moved(self) -> int:
        return self._moved

    def _free(self, i: int) -> None:
        kind = self._pieces[i].kind
        (self._local if kind in LOCAL else self._sends if kind == SEND else self._recvs).append(i)

    def _post(self) -> bool:
        """Start every piece that may start, receives before sends. Whether there was one."""
        if not (self._recvs or self._sends or self._local):
            return False
        while self._local:
            self._moved += 1
            self._finish([self._local.popleft()])
        if self._computing:
            self._synchronize()
            self._computing = False
        while self._recvs or self._sends:
            i = (self._recvs or self._sends).popleft()
            piece = self._pieces[i]
            self._handles[i].start()
            self._flying[piece.kind == SEND, piece.peer].append(i)
            self._moved += 1
            self._release(self._plan.started[i])
        return True

    def _collect(self) -> bool:
        """Take the messages that have ended, oldest first on each channel. Whether there was one."""
        moved = self._moved
        for channel in self._flying.values():
            while channel and self._handles[channel[0]].test():
                self._arrived(channel.popleft())
        return self._moved != moved

    def _arrived(self, i: int) -> None:
        self._moved += 1
        if self._pieces[i].kind == ADD and self._add_waits[i]:
            self._landed.add(i)
        else:
            self._finish([i])

    def _finish(self, ready: list[int]) -> None:
        """Add these pieces' contributions, and those that have waited for them alone: they are done."""
        while ready:
            i = ready.pop()
            self._compute(i)
            self._left -= 1
            self._release(self._plan.done_start[i])
            ready += self._let_add(self._plan.done_add[i])

    def _compute(self, i: int) -> None:
        """What the piece does besides travelling."""
        kind, span = self._pieces[i].kind, self._spans[i]
        if kind in (ADD, FOLD):
            self._add(span, self._messages[i], span)
        elif kind in LOCAL:
            span[...] = self._messages[i]
        self._computing |= kind == ADD or kind in LOCAL

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
                self._free(follower)

    def _awaited(self) -> str:
        late = [channel for channel, flying in self._flying.items() if flying]
        verbs = ((False, "send"), (True, "receive"))  # what is awaited of a peer: the other end
        named = {verb: [peer for sending, peer in late if sending == own] for own, verb in verbs}
        whom = " and ".join(f"{peers(ranks)} to {verb}" for verb, ranks in named.items() if ranks)
        done, total = len(self._pieces) - self._left, len(self._pieces)
        return f"{whom}: rank {self._rank} in {self._name}, tag {self._tag}, {done} of {total} messages done"


def _views(plan: Plan, buffer, allocate: Callable) -> tuple[list, list]:
    """For every piece the elements that it is about, in the buffer or in scratch; and what comes to them, or
    travels: those elements themselves, the staging in which a contribution to them arrives, or other elements
    of this rank."""
    count = buffer.size
    scratch = allocate(plan.scratch, buffer.dtype) if plan.scratch else None
    staging = allocate(plan.stages * plan.segment, buffer.dtype) if plan.segment else None

    def elements(start: int, stop: int):
        return buffer[start:stop] if start < count else scratch[start - count : stop - count]

    def message(piece: Piece):
        if piece.kind == ADD:
            start = piece.stage * plan.segment
            return staging[start : start + piece.stop - piece.start]
        return elements(*(piece.read or piece.written))

    return [elements(piece.start, piece.stop) for piece in plan.pieces], [message(piece) for piece in plan.pieces]
