"""Running an all-reduce over several nodes: in shared memory within each, by messages between them, and both at once.

It is the hierarchical all-reduce of :mod:`ringtrain.collectives.algorithms.hierarchical` with a fused plan for its
inner halves. The buffer is cut into slices, as many as the widest node has ranks, and slice l is carried by local rank
l mod g of a node with g ranks. Each slice is cut into pieces, and each piece goes its own way:

1.  Its owner adds the node's contributions to it, as soon as all ranks of the node have come.
2.  The owners of all nodes all-reduce it, by an outer schedule over messages.
3.  Its owner writes the sum into the buffers of its node.

While one piece is between nodes the next is added and the one before is pushed: the network is busy from the first
addition to the last. A rank touches its own slices alone, on its own node; that is what is proved of the fused plan,
and a piece that waits for the network changes nothing about it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ringtrain.collectives import texts
from ringtrain.collectives.compose import embed
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.execution.fused_plan import TwoShotPlan, order_of
from ringtrain.collectives.execution.mapped import (
    COMING,
    FINAL,
    IDLE,
    LEAVING,
    MOVING,
    WORKING,
    actions,
    on_host,
    pieces,
    say_awaited,
    spans,
    summed,
)
from ringtrain.collectives.execution.reduction import HOST, Reduction, WireFormat
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import Topology
from ringtrain.errors import TransportError
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.waiting import peers, wait_for

PIECES = 32  # of a slice, at most: the first addition and the last push are then little of the whole
LEAST_BYTES = 1 << 18  # of a piece, but for the last: below that, messages cost more than their bytes
FLYING = 8  # pieces between nodes at once: enough to keep the network busy, few enough to end one after the other
FIRST_TAG = 1 << 14  # behind the tags of others in flight; an MPI has 32767 at least


@dataclass(frozen=True, slots=True)
class SliceSegment:
    """A piece of slice ``number``: elements ``start:stop``, exchanged by ``carriers``, one rank of each node, under a
    tag that no other piece of two of them has."""

    number: int
    start: int
    stop: int
    carriers: tuple[int, ...]
    tag: int


def portions(topology: Topology, rank: int, count: int, least: int, tag: int) -> Iterator[SliceSegment]:
    """What ``rank`` carries of a buffer of ``count`` elements, in pieces of at least ``least`` of them."""
    smallest, slices = min(topology.counts), max(topology.counts)
    # Two ranks carry the same slices only so far apart: rounds of the smallest node tell them apart.
    first = FIRST_TAG + tag * PIECES * -(-slices // smallest)
    for number, (start, stop) in enumerate(spans(count, slices)):
        carriers = tuple(ranks[number % len(ranks)] for ranks in topology.nodes)
        if rank in carriers:
            longest = max(-(-(stop - start) // PIECES), least)
            for index, (a, b) in enumerate(pieces(start, stop, longest)):
                yield SliceSegment(number, a, b, carriers, first + number // smallest * PIECES + index)


class SegmentPipeline:
    """A portion at work: what this rank adds, what goes between nodes, what it pushes."""

    def __init__(self, additions: list, outer: Execution, copies: list):
        self._additions, self.outer, self._copies = additions, outer, copies

    def start(self) -> None:
        for function, arguments in self._additions:
            function(*arguments)
        self.outer.start()

    def push(self) -> None:
        for function, arguments in self._copies:
            function(*arguments)


def make_piece(
    portion: SliceSegment,
    fused: TwoShotPlan,
    outer: Schedule,
    transport: Transport,
    twins: Sequence,
    combine: Callable,
    segment_bytes: int,
    wire: WireFormat | None = None,
    device=HOST,
) -> SegmentPipeline:
    """``fused``: the plan of this rank's node. ``outer``: an all-reduce of one rank of each node, in their order.
    ``twins``: the buffer on every rank of the node, by place. ``wire``: how messages between nodes are packed.
    ``device``: as for :class:`ringtrain.collectives.execution.mapped.Mapped`."""
    place = transport.neighbours.index(transport.rank)
    views = [twin[portion.start : portion.stop] for twin in twins]
    if on_host(views):
        additions, copies = (
            actions([task for task in fused.tasks[place] if task.add == adds], lambda home: views[home[0]], combine)
            for adds in (True, False)
        )
    else:
        order, own = order_of(fused, place), views[place]
        additions = summed(device, [views[source] for source in order], [own])
        copies = summed(device, [own], [views[target] for target in order if target != place])
    seats = [[(chunk, chunk + 1)] for chunk in range(outer.chunks)]
    schedule = embed(outer, portion.carriers, seats, transport.size, outer.chunks)
    messages = Execution(schedule, transport, views[place], combine, portion.tag, segment_bytes, device, wire=wire)
    return SegmentPipeline(additions, messages, copies)


class Routed(Reduction):
    """Collective. ``made``: the pieces that this rank carries, in order. ``lane``: counters that nobody else uses at
    the time. ``device``: what computes."""

    algorithm = transport = "routed"

    def __init__(self, made: list[SegmentPipeline], transport: Transport, lane: SignalCounter, device=HOST):
        self._pieces, self._lane, self._device = made, lane, device
        self.bytes_sent = sum(piece.outer.bytes_sent for piece in made)
        self._neighbours, self._rank, self._patience = transport.neighbours, transport.rank, transport.patience
        self._state, self._begun, self._pushed = IDLE, 0, 0
        self._flying: deque[SegmentPipeline] = deque()

    def start(self) -> None:
        if self._state != IDLE:
            raise TransportError(texts.STARTED_AGAIN(name=texts.ROUTED))
        self._begun = self._pushed = 0
        self._mark = self._device.mark()
        self._state = FINAL
        self.test()

    def test(self) -> bool:
        if self._state == FINAL and self._mark.done():
            self._lane.advance()
            self._state = COMING
        if self._state == COMING and self._lane.reached():
            self._state = MOVING
        if self._state == MOVING and self._move():
            self._mark = self._device.mark()
            self._state = WORKING
        if self._state == WORKING and self._mark.done():
            self._lane.advance()
            self._state = LEAVING
        if self._state == LEAVING and self._lane.reached():
            self._state = IDLE
        return self._state == IDLE

    def _move(self) -> bool:
        """Push what has come back, let what is under way get on, and begin more. Whether all is pushed."""
        while self._flying and self._flying[0].outer.test():
            self._flying.popleft().push()
            self._pushed += 1
        for piece in self._flying:
            piece.outer.test()
        while len(self._flying) < FLYING and self._begun < len(self._pieces):
            piece = self._pieces[self._begun]
            piece.start()
            self._flying.append(piece)
            self._begun += 1
        return self._pushed == len(self._pieces)

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, lambda: self.moved, self._patience)

    def free(self) -> None:
        for piece in self._pieces:
            piece.outer.free()

    @property
    def moved(self) -> int:
        return self._state + self._pushed + sum(piece.outer.moved for piece in self._pieces[: self._begun])

    def _awaited(self) -> str:
        if self._state == MOVING:
            return texts.AWAITED_PIECE(
                piece=self._pushed, pieces=len(self._pieces), awaited=self._flying[0].outer.awaited()
            )
        late = peers([self._neighbours[place] for place in self._lane.late()])
        return say_awaited(self._state, late, texts.ROUTED, self._rank)
