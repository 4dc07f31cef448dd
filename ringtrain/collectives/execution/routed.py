"""Execution of an all-reduce over several nodes: in shared memory within each node, by messages between nodes, both at
once.

It is the hierarchical all-reduce of :mod:`ringtrain.collectives.algorithms.hierarchical` with a two-shot program for
its inner halves. The buffer is cut into slices, as many as the widest node has ranks, and slice l is carried by local
rank l mod g of a node with g ranks. Each slice is cut into segments, and each segment goes through three steps:

1.  Its owner adds the node's contributions to it, as soon as all ranks of the node have come.
2.  The owners on all nodes all-reduce it, by an outer schedule over messages.
3.  Its owner writes the sum into the buffers of its node.

While one segment is between nodes the next is added and the one before is written: the network is busy from the first
addition to the last. A rank touches only its own slices, on its own node; this is the proof of the two-shot program,
and a segment that waits for the network changes nothing about it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.compose import embed
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.execution.mapped import (
    IDLE,
    MOVING,
    NodeReduction,
    Work,
    on_host,
    run_operations,
    spans,
    sum_into,
)
from ringtrain.collectives.execution.node_program import ChunkOperation, NodeProgram, addition_order
from ringtrain.collectives.execution.reduction import HOST, Combine, ReductionDevice, WireFormat
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import Topology
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter

SEGMENTS = 32  # of a slice, at most: the first addition and the last copy are then a small fraction of the time
LEAST_BYTES = 1 << 18  # of a segment, but for the last: below that, messages cost more than their bytes
IN_FLIGHT = 8  # segments between nodes at once: enough to keep the network busy, few enough to end one after the other
FIRST_TAG = 1 << 14  # behind the tags of others in flight; an MPI has 32767 at least


@dataclass(frozen=True, slots=True)
class SliceSegment:
    """A segment of slice ``number``: elements ``start:stop``, exchanged by ``carriers``, one rank of each node, under a
    tag that no other segment of two of them has."""

    number: int
    start: int
    stop: int
    carriers: tuple[int, ...]
    tag: int


def slice_segments(topology: Topology, rank: int, count: int, least: int, tag: int) -> Iterator[SliceSegment]:
    """Yield the segments of at least ``least`` elements that ``rank`` carries, of a buffer of ``count`` elements."""
    smallest, slices = min(topology.counts), max(topology.counts)
    # Slices that two ranks carry together are at least the smallest node's size apart: its rounds give distinct tags.
    first = FIRST_TAG + tag * SEGMENTS * -(-slices // smallest)
    for number, (start, stop) in enumerate(spans(count, slices)):
        carriers = tuple(ranks[number % len(ranks)] for ranks in topology.nodes)
        if rank in carriers:
            longest = max(-(-(stop - start) // SEGMENTS), least)
            for index, a in enumerate(range(start, stop, longest)):
                b = min(a + longest, stop)
                yield SliceSegment(number, a, b, carriers, first + number // smallest * SEGMENTS + index)


class SegmentPipeline(NamedTuple):
    """The three steps of one segment: this rank's additions, the messages between nodes, its copies."""

    additions: Work
    outer: Execution
    copies: Work


def make_pipeline(
    segment: SliceSegment,
    program: NodeProgram,
    outer: Schedule,
    transport: Transport,
    peer_views: Sequence[Array],
    combine: Combine,
    segment_bytes: int,
    wire: WireFormat | None = None,
    device: ReductionDevice = HOST,
) -> SegmentPipeline:
    """Return the pipeline of one segment.

    program:    the program of this rank's node
    outer:      an all-reduce of one rank of each node, in their order
    peer_views: the buffer on every rank of the node, by local rank
    wire:       packs the messages between nodes
    device:     adds, if the views lie outside host memory
    """
    local_rank = transport.neighbours.index(transport.rank)
    views = [view[segment.start : segment.stop] for view in peer_views]
    if on_host(views):
        additions, copies = (
            host_operations([task for task in program.tasks[local_rank] if task.add == adds], views, combine)
            for adds in (True, False)
        )
    else:
        order, summed = addition_order(program, local_rank), views[local_rank]
        additions = sum_into(device, [views[source] for source in order], [summed])
        copies = sum_into(device, [summed], [views[target] for target in order if target != local_rank])
    chunk_spans = [[(chunk, chunk + 1)] for chunk in range(outer.chunks)]
    schedule = embed(outer, segment.carriers, chunk_spans, transport.size, outer.chunks)
    messages = Execution(schedule, transport, views[local_rank], combine, segment.tag, segment_bytes, device, wire=wire)
    return SegmentPipeline(additions, messages, copies)


def host_operations(tasks: Sequence[ChunkOperation], views: Sequence[Array], combine: Combine) -> Work:
    """Return the tasks on a segment, whose elements are ``views`` by rank."""
    operations: Work = []
    for task in tasks:
        a, b = views[task.target[0]], views[task.source[0]]
        operations.append((combine, (a, b, a)) if task.add else (np.copyto, (a, b)))
    return operations


class Routed(NodeReduction):
    """The hierarchical all-reduce of one buffer. Collective.

    pipelines: the segments that this rank carries, in order
    counter:   signal counter, used only here at the time
    device:    the device that computes
    """

    algorithm = transport = "routed"
    _called = "a routed all-reduce"

    def __init__(
        self,
        pipelines: list[SegmentPipeline],
        transport: Transport,
        counter: SignalCounter,
        device: ReductionDevice = HOST,
    ):
        super().__init__(transport, counter, device)
        self._segments, self._begun, self._pushed = pipelines, 0, 0
        self.bytes_sent = sum(segment.outer.bytes_sent for segment in pipelines)
        self._in_flight: deque[SegmentPipeline] = deque()

    def start(self) -> None:
        if self._state == IDLE:
            self._begun = self._pushed = 0
        super().start()

    def _move(self) -> bool:
        """Write the segments that have come back, progress those in flight, and begin more."""
        while self._in_flight and self._in_flight[0].outer.test():
            run_operations(self._in_flight.popleft().copies)
            self._pushed += 1
        for segment in self._in_flight:
            segment.outer.test()
        while len(self._in_flight) < IN_FLIGHT and self._begun < len(self._segments):
            segment = self._segments[self._begun]
            run_operations(segment.additions)
            segment.outer.start()
            self._in_flight.append(segment)
            self._begun += 1
        return self._pushed == len(self._segments)

    def free(self) -> None:
        for segment in self._segments:
            segment.outer.free()

    @property
    def moved(self) -> int:
        return self._state + self._pushed + sum(segment.outer.moved for segment in self._segments[: self._begun])

    def _awaited(self) -> str:
        if self._state == MOVING:
            return f"segment {self._pushed} of {len(self._segments)}: {self._in_flight[0].outer.awaited()}"
        return super()._awaited()
