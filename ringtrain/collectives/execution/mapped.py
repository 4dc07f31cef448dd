"""Running a fused plan in memory that the ranks of a node share: wait for all, add and push, wait for all.

On a device what is added to a chunk and pushed is one operation on the memory of all ranks. A rank says that it has
come when its own buffer is final, and that it is done when its device is: so there are two more things to wait for.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ringtrain.collectives import texts
from ringtrain.collectives.execution.fused_plan import ChunkOperation, Place, TwoShotPlan, is_one_pass, order_of
from ringtrain.collectives.execution.reduction import HOST, Reduction
from ringtrain.collectives.schedule import bounds
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.waiting import peers, wait_for

WORK_BYTES = 1 << 18  # of all twins of a piece: what is added is then still in the cache when it is pushed
LEAST_BYTES = 1 << 14  # of each twin, however many there are: below that, calls cost more than what they move
# What a rank waits for: nothing; its buffer to be final; all to have come; what goes between nodes, where there are
# several; its own part to be done; all to be done.
IDLE, FINAL, COMING, MOVING, WORKING, LEAVING = range(6)


Work = list[tuple[Callable, tuple]]  # functions with their arguments


class Mapped(Reduction):
    """One fused plan on one buffer, which lies in memory that the node shares. Collective over the node.

    twins:       the buffer on every rank of the node, by place (:meth:`Transport.peer_views`)
    lane:        counters that nobody else uses at the time
    combine:     combine(a, b, y): y = a op b
    device:      what computes, as for :class:`ringtrain.collectives.execution.execute.Execution`; where the buffer is
                 not in host
                 memory it adds by its add_all(sources, targets), and ``combine`` is that addition
    piece_bytes: of a chunk, added and pushed at once on a host; None: as suits the caches
    lanes:       what ranks bring besides, where the plan has more of them: of each further lane the twins, as of the
                 buffer. They are overwritten
    """

    algorithm = transport = "mapped"

    def __init__(
        self,
        fused: TwoShotPlan,
        transport: Transport,
        twins: Sequence,
        lane: SignalCounter,
        combine: Callable,
        device=HOST,
        piece_bytes: int | None = None,
        lanes: Sequence[Sequence] = (),
    ):
        place = transport.neighbours.index(transport.rank)
        start, stop = spans(twins[place].size, fused.chunks)[place]
        arrays = [twins, *lanes]
        if on_host(twins):
            longest = (piece_bytes or piece_bytes_for(sum(fused.inputs_of))) // twins[place].itemsize
            self._work = [
                action
                for a, b in pieces(start, stop, longest)
                for action in actions(fused.tasks[place], elements(arrays, fused.chunks, a, b), combine)
            ]
        else:
            self._work = launches(device, fused, place, elements(arrays, fused.chunks, start, stop))
        # What others bring to the own chunk is fetched, and the sum written to where it is wanted.
        moved = sum(fused.inputs_of) - fused.inputs_of[place] + len(twins) - 1
        self.bytes_sent = moved * (stop - start) * twins[place].dtype.itemsize
        self._lane, self._device, self._patience = lane, device, transport.patience
        self._neighbours, self._rank = transport.neighbours, transport.rank
        self._state = IDLE

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError(texts.STARTED_AGAIN(name=texts.SHARED))
        self._mark = self._device.mark()
        self._state = FINAL
        self.test()

    def test(self) -> bool:
        if self._state == FINAL and self._mark.done():
            self._lane.advance()
            self._state = COMING
        if self._state == COMING and self._lane.reached():
            for function, arguments in self._work:
                function(*arguments)
            self._mark = self._device.mark()
            self._state = WORKING
        if self._state == WORKING and self._mark.done():
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
        return say_awaited(self._state, late, texts.SHARED, self._rank)


def say_awaited(state: int, late: str, name: str, rank: int) -> str:
    """``late``: the ranks that have not advanced as often as this one, ``rank``."""
    awaited = texts.AWAITED_START if state in (FINAL, COMING) else texts.AWAITED_END
    return awaited(whom=texts.ITS_DEVICE if state in (FINAL, WORKING) else late, name=name, rank=rank)


def on_host(twins: Sequence) -> bool:
    return isinstance(twins[0], np.ndarray)


def summed(device, sources: Sequence, targets: Sequence) -> Work:
    """The sum of the sources into every target, in one operation of a device: as :func:`actions`."""
    return [(device.add_all, (sources, targets))] if sources[0].size and targets else []


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


def elements(arrays: Sequence[Sequence], chunks: int, start: int, stop: int) -> Callable[[Place], object]:
    """Where these elements of a chunk lie, by place; ``arrays[lane][rank]``: all there is."""
    return lambda place: arrays[place[1] // chunks][place[0]][start:stop]


def actions(tasks: Sequence[ChunkOperation], at: Callable[[Place], object], combine: Callable) -> Work:
    """The tasks on a piece of a chunk, whose elements in any place are ``at(place)``."""
    made = []
    for task in tasks:
        a, b = at(task.target), at(task.source)
        made.append((combine, (a, b, a)) if task.add else (np.copyto, (a, b)))
    return made


def launches(device, fused: TwoShotPlan, rank: int, at: Callable[[Place], object]) -> Work:
    """The same on a device: one operation where the plan adds one contribution after another; else one for each
    addition, of which the last writes the sum to all who want it."""
    if is_one_pass(fused, rank):
        own = [at((source, rank)) for source in order_of(fused, rank)]
        return summed(device, own, own)
    additions = [(at(task.target), at(task.source)) for task in fused.tasks[rank] if task.add]
    given = [at(task.target) for task in fused.tasks[rank] if not task.add]
    targets = [[target] for target, _ in additions[:-1]] + [[additions[-1][0], *given]]
    return [work for pair, into in zip(additions, targets, strict=True) for work in summed(device, pair, into)]
