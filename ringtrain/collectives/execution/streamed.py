"""Streamed collectives: of arrays that lie anywhere, among the ranks of a node, through a small window of memory that
they share. What a rank does, and for what it waits, is proved in the tests (tests/collectives/stream_program.py).

What adds or copies reads the others' slots and writes the array itself: nothing else is copied. All share one window,
so they run one after another in the order of their starts, which all ranks make alike.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal

import numpy as np

from ringtrain.arrays import Array, array_address
from ringtrain.collectives import texts
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import MismatchError, TransportError
from ringtrain.ops.cpu.streamed import (
    ADDING,
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    COSTS,
    COUNTERS,
    GATHER,
    HEADER_BYTES,
    IN_PIECES,
    LINE_BYTES,
    MOST_SLOTS,
    REDUCE,
    SCATTER,
    SLICED_ALL_REDUCE,
    StreamedCall,
    read_process,
)
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for

STREAM = "stream"  # the name of the algorithm
STREAMED = "a streamed {}"  # in messages
ROOTED = (REDUCE, BROADCAST, GATHER, SCATTER)  # where ranks do not all write and read: none learns what both cost
How = Literal["test", "wait", "rest"]
SLOT_BYTES = 256 << 10
LEAST_SLOTS = 4
TURN_S = 0.5e-3
MOST_BITS = 64  # of a size in bytes
WINDOW_BYTES = 32 << 20  # of a node, at most: its ranks then have smaller slots
LEARNING_BYTES = 4 << 10  # from here on bytes take the time that a rank can measure; below, the way to the others
ONCE_BYTES = 512 << 10  # from here on the kernel's one copy is faster than two through slots, as measured:
ONCE_BROADCAST_BYTES = 8 << 20  # above, the root's copies into slots go beside the others' from them
SLICED_BYTES = 32 << 10  # from here on the ranks of a larger node add slices: below, a wait costs more than it saves


def readable_processes(transport: Transport) -> np.ndarray | None:
    """Return the numbers of the processes of the node's ranks, if each reads the next one's memory by the kernel: where
    Yama restricts tracing, and in some containers, it does not. Collective."""
    token = np.frombuffer(os.urandom(16), np.uint8).copy()
    offers = transport.gather_json([os.getpid(), array_address(token), token.tobytes().hex()])
    mine = [offers[rank] for rank in transport.neighbours]
    process, address, wanted = mine[(transport.neighbours.index(transport.rank) + 1) % len(mine)]
    alike = transport.gather_json((read_process(process, address, token.nbytes) or b"").hex() == wanted)
    return np.array([number for number, *_ in mine]) if all(alike) else None


def is_copied_once(collective: str, size: int, nbytes: int) -> bool:
    """Whether the kernel copies rows of so many bytes from array to array, if it may. Of an all-gather of more than two
    ranks it does not: one copy into a slot serves all that read it."""
    if collective in ADDING or nbytes < ONCE_BYTES:
        return False
    return {ALL_GATHER: size == 2, BROADCAST: nbytes <= ONCE_BROADCAST_BYTES}.get(collective, True)


class StreamWindow:
    """The slots of the ranks of a node. Collective to make.

    memory:  the memory of each rank of the node, by local rank; None if they share none
    processes: numbers of their processes, if each may read the others' memory
    running: the reductions that are started, in their order
    """

    def __init__(self, transport: Transport):
        share = WINDOW_BYTES // transport.local_size
        self.slots = max(LEAST_SLOTS, min(MOST_SLOTS, share // SLOT_BYTES))
        self.slot_bytes = min(SLOT_BYTES, share // self.slots // LINE_BYTES * LINE_BYTES)
        window = transport.allocate(HEADER_BYTES + self.slots * self.slot_bytes, np.uint8)
        self.memory: Sequence[Array] | None = transport.peer_views(window) if isinstance(window, np.ndarray) else None
        self._counts = np.asarray(window)[:HEADER_BYTES].view(np.int64) if self.memory is not None else np.zeros(0, int)
        self.running = deque[Streamed]()
        self.processes = readable_processes(transport)
        self._moving = Lock()  # a prepared reduction and one in flight are moved by two threads
        self._costs: dict[str, np.ndarray] = {}

    def costs(self, collective: str, nbytes: int) -> np.ndarray:
        """Return what calls on arrays of about this size have cost on this rank."""
        return self._costs.setdefault(collective, np.zeros((MOST_BITS, COSTS)))[nbytes.bit_length()]

    def chunk_bytes(self, pieces: int) -> int:
        """Return the bytes of a chunk of which a slot has so many pieces; 0 if it has no room for them."""
        return self.slot_bytes // pieces // LINE_BYTES * LINE_BYTES

    def move(self, last: "Streamed", how: How = "test") -> None:
        """Let the reductions go on that were started, up to ``last``. ``how``: as of :class:`StreamedCall`"""
        if not self._moving.acquire(timeout=0.0 if how == "test" else TURN_S):
            return  # another thread moves them, and may sleep for long: `last` may have ended by then
        try:
            while last.started and self.running[0].move(how):
                pass
        finally:
            self._moving.release()

    def moved(self) -> int:
        """Return a number that grows whenever this rank goes on."""
        return int(sum(self._counts[counter] for counter in COUNTERS))


class Streamed(Reduction):
    """All-reduces, or other collectives, of one type, by one operation, of arrays of this rank.

    op:    sum, mean, max or min; of those that add
    dtype: of those that add; the others move bytes
    count: elements, of a row where an array has one for each rank
    content: its array, in words: the same on all ranks
    call: what all ranks ask for, in words; "" says it by the numbers
    collective: among :data:`ringtrain.ops.cpu.streamed.COLLECTIVES`; root: the rank, of those that have one
    """

    algorithm, transport = STREAM, "streamed"

    def __init__(
        self,
        transport: Transport,
        window: StreamWindow,
        op: str,
        dtype: str,
        count: int,
        itemsize: int,
        content: str = "",
        call: str = "",
        collective: str = ALL_REDUCE,
        root: int = 0,
    ):
        self._window, self._count, self._world = window, count, transport
        nbytes, size = count * itemsize, transport.local_size
        once = window.processes is not None and is_copied_once(collective, size, nbytes)
        pieces = size if collective in IN_PIECES else 1
        chunk_bytes = ONCE_BYTES if once else window.chunk_bytes(pieces)
        self._collective = collective
        if collective == ALL_REDUCE and size > 2 and nbytes >= SLICED_BYTES:
            collective = SLICED_ALL_REDUCE
        assert window.memory is not None, "a window without memory reduces nothing"
        self._names = [transport.world_ranks[rank] for rank in transport.neighbours]
        learns = nbytes >= LEARNING_BYTES and collective not in ROOTED and not once
        spins = transport.patience.spin_s > 0
        carried = f" {content}" if content else ""
        self.called = call  # while it is awaited; "": a chunk is
        self._words = call or f"{op} of {count:,} {dtype}{carried} in chunks of {chunk_bytes:,} bytes"
        self._call = StreamedCall(
            collective,
            dtype,
            op,
            transport.neighbours.index(root) if collective in ROOTED else 0,
            [np.asarray(memory) for memory in window.memory],
            transport.neighbours.index(transport.rank),
            window.slots,
            window.slot_bytes,
            chunk_bytes,
            learns,
            self._words,
            window.costs(self._collective, nbytes),
            window.processes if once else None,
            spins,
        )
        self._chunks = -(-nbytes // chunk_bytes)
        # What the busiest rank reads: the others' chunks; with slices, the contributions to its own and the sums of the
        # others.
        read = {SLICED_ALL_REDUCE: 2 * (size - 1) / size, BROADCAST: 1, SCATTER: 1}.get(collective, size - 1)
        self.bytes_sent = int(nbytes * read)
        self.started = False
        self._state, self._enter, self._running = self._call.state, self._call.wait, window.running
        self._arrays: object = None  # kept: the call knows only their addresses
        self._array: Callable[[], object] | None = None

    def bind(self, source: np.ndarray, target: np.ndarray, array: Callable[[], object] | None = None) -> None:
        """Set the arrays of the next run: each is contiguous, and they may be the same one.

        array: array() → the arrays whose memory they are, kept only while a run needs them; None: both are kept
        """
        if self.started:
            raise self._started_again()
        self._arrays, self._array = None if array else (source, target), array
        self._call.bind(array_address(source), array_address(target), self._count)

    def release(self) -> None:
        """Keep the arrays no longer: the next run has others."""
        self._arrays = None

    def _started_again(self) -> TransportError:
        return TransportError(texts.STARTED_AGAIN.format(name=STREAMED.format(self._collective)))

    def start(self) -> None:
        if self.started:
            raise self._started_again()
        self._begin()
        self.test()

    def test(self) -> bool:
        if self.started:
            self._window.move(self)
        return not self.started

    def wait(self, deadline_s: float) -> None:
        if self.started:
            self._window.move(self, "wait")
        if self.started:
            wait_for(self._rest, deadline_s, self._awaited, self._window.moved, self._world.patience, sleeps=True)

    def _rest(self) -> bool:
        if self.started:
            self._window.move(self, "rest")
        return not self.started

    def run(self, deadline_s: float) -> None:
        if self._running:
            super().run(deadline_s)
            return
        outcome = 0
        try:
            outcome = self._enter()
        finally:  # also when the user interrupts it: others read what it has published, so the next waits for its end
            if outcome != 1 and self._state[0]:
                self._begin()
        if self.started:
            self.wait(deadline_s)

    def _begin(self) -> None:
        if self._array is not None:
            self._arrays = self._array()
        self.started = True
        self._window.running.append(self)

    def move(self, how: How) -> bool:
        """Go on: the window's turn. Returns whether it is done."""
        try:
            outcome = getattr(self._call, how)()
        finally:
            if not self._state[0]:
                self.started = False
                self._window.running.popleft()
                if self._array is not None:
                    self._arrays = None
        if self._call.refused:
            why = os.strerror(self._call.refused)
            raise TransportError(
                f"{self._collective} on rank {self._world.world_ranks[self._world.rank]}: the kernel does not read the "
                f"array of another rank: {why}. Is it ordinary memory?"
            )
        if outcome < 0:
            raise self._mismatch(-1 - outcome)
        return not self.started

    def _mismatch(self, local_rank: int) -> MismatchError:
        rank, other = self._world.world_ranks[self._world.rank], self._names[local_rank]
        return MismatchError(
            f"ranks make different calls: rank {rank} {self._words}, rank {other} {self._call.call_of(local_rank)}: "
            "all ranks make the same calls in the same order"
        )

    @property
    def moved(self) -> int:
        return self._state[0]

    def _awaited(self) -> str:
        return self._window.running[0].awaited()

    def awaited(self) -> str:
        """Return the ranks that it waits for, and the chunk."""
        late = peers([self._names[local_rank] for local_rank in self._call.behind()])
        if self.called:
            return f"{late} to join the {self.called}"
        chunk, streamed = f"chunk {self._call.chunk} of {self._chunks}", STREAMED.format(self._collective)
        return f"{late} for {chunk} of {streamed} on rank {self._world.world_ranks[self._world.rank]}"
