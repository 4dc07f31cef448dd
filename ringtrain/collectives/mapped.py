"""Running a fused plan in memory that the ranks of a node share: wait for all, add and push, wait for all."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ringtrain.collectives.fused import Fused, Task
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.schedule import bounds
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.mapped import Lane
from ringtrain.transport.waiting import peers, wait_for

WORK_BYTES = 1 << 18  # of all twins of a piece: what is added is then still in the cache when it is pushed
LEAST_BYTES = 1 << 14  # of each twin, however many there are: below that, calls cost more than what they move
IDLE, COMING, LEAVING = range(3)  # what a rank waits for: nothing; all to have come; all to be done


class Mapped(Reduction):
    """One fused plan on one buffer, which lies in memory that the node shares. Collective over the node.

    twins:       the buffer on every rank of the node, by place (:meth:`Transport.twins`)
    lane:        counters that nobody else uses at the time
    combine:     combine(a, b, y): y = a op b
    synchronize: waits for what is still being computed in the buffer
    piece_bytes: of a chunk, added and pushed at once; None: as suits the caches
    """

    algorithm = transport = "mapped"

    def __init__(
        self,
        fused: Fused,
        transport: Transport,
        twins: Sequence,
        lane: Lane,
        combine: Callable,
        synchronize: Callable[[], None],
        piece_bytes: int | None = None,
    ):
        place = transport.neighbours.index(transport.rank)
        start, stop = spans(twins[place].size, fused.chunks)[place]
        longest = (piece_bytes or piece_bytes_for(len(twins))) // twins[place].itemsize
        self._work = [
            action
            for a, b in pieces(start, stop, longest)
            for action in actions(fused.tasks[place], [twin[a:b] for twin in twins], combine)
        ]
        # Each contribution to the own chunk is fetched, and its sum written to where that came from.
        self.bytes_sent = 2 * (len(twins) - 1) * (stop - start) * twins[place].itemsize
        self._lane, self._synchronize, self._patience = lane, synchronize, transport.patience
        self._neighbours, self._rank = transport.neighbours, transport.rank
        self._state = IDLE

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError("an all-reduce in shared memory was started again before it was done")
        self._synchronize()
        self._lane.advance()
        self._state = COMING
        self.test()

    def test(self) -> bool:
        if self._state == COMING and self._lane.reached():
            for function, arguments in self._work:
                function(*arguments)
            self._lane.advance()
            self._state = LEAVING
        if self._state == LEAVING and self._lane.reached():
            self._state = IDLE
        return self._state == IDLE

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, self._progress, self._patience)

    def _progress(self) -> int:
        return self._state

    @property
    def moved(self) -> int:
        return self._state

    def _awaited(self) -> str:
        late = peers([self._neighbours[place] for place in self._lane.late()])
        verb = "come to" if self._state == COMING else "end its part of"
        return f"{late} to {verb} an all-reduce in shared memory, rank {self._rank}"


def piece_bytes_for(ranks: int) -> int:
    """Of a chunk, where so many ranks' are added."""
    return max(WORK_BYTES // ranks, LEAST_BYTES)


def spans(count: int, chunks: int) -> list[tuple[int, int]]:
    """(start, stop) of every chunk of a buffer of ``count`` elements."""
    edges = bounds(count, chunks)
    return list(pairwise(edges))


def pieces(start: int, stop: int, longest: int) -> list[tuple[int, int]]:
    """The span in pieces of at most so many elements."""
    return [(at, min(at + longest, stop)) for at in range(start, stop, longest)]


def actions(tasks: Sequence[Task], twins: Sequence, combine: Callable) -> list[tuple[Callable, tuple]]:
    """The tasks on a piece of a chunk, whose elements on every rank are ``twins``: functions with their arguments."""
    made = []
    for task in tasks:
        a, b = twins[task.target[0]], twins[task.source[0]]
        made.append((combine, (a, b, a)) if task.add else (np.copyto, (a, b)))
    return made
