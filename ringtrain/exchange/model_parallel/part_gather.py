"""Brings the arrays of fully connected layers from the ranks that hold their columns to the ranks in front, which
evaluate and save the whole network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement, PlacementTable
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span

BLOCK = 1 << 20  # elements that one rank sends at a time, about


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows ``start:stop`` of a parameter ``span`` of the whole network, whose columns ``ranks`` divide. ``edges``: the
    start of each rank's columns, and the end."""

    span: Span
    ranks: Sequence[int]
    edges: Sequence[int]
    start: int
    stop: int


class PartGather:
    """``arena``: this rank's, of the whole network or of its part."""

    def __init__(self, settings: ExchangeSettings, table: PlacementTable, arena: Arena):
        self._ops, self._rank = settings.ops, settings.transport.rank
        guard, transport = settings.guard, settings.transport
        self._together = transport if guard is None else GuardedTransport(transport, guard)
        self._front = table.index == 0
        self._spans = {span.name: span for span in arena.spans}
        self._plan = [block for placement in table.placements[1:] for block in _blocks(placement, table)]
        widest = max((max(np.diff(b.edges)) * (b.stop - b.start) for b in self._plan), default=0)
        groups = max(len(block.ranks) for block in self._plan)
        self._memory = [transport.scratch(int(widest), arena.weights.dtype) for _ in range(groups)]

    def gather(self, flat: Array) -> None:
        """Bring the parts, flat arrays over the arenas of their ranks, into flat arrays over the whole arena, of the
        ranks in front. Collective."""
        self._ops.synchronize()
        for block in self._plan:
            parts = []
            for number, rank in enumerate(block.ranks):
                shape = block.stop - block.start, block.edges[number + 1] - block.edges[number]
                part = self._memory[number][: shape[0] * shape[1]].reshape(shape)
                if rank == self._rank:
                    self._ops.copy(_rows(flat, self._spans[block.span.name], block), part)
                    self._ops.synchronize()
                self._together.broadcast(part.reshape(-1), rank)
                parts.append(part)
            if self._front:
                self._ops.concat(parts, _rows(flat, block.span, block))
                self._ops.synchronize()


def _rows(flat: Array, span: Span, block: RowBlock) -> Array:
    return flat[span.start : span.start + span.count].reshape((-1, span.shape[-1]))[block.start : block.stop]


def _blocks(placement: LayerPlacement, table: PlacementTable) -> Iterator[RowBlock]:
    layers = {node.name for node in table.graph.plan[placement.start : placement.stop]}
    for span in table.spans:
        if span.name.rpartition(".")[0] in layers:
            count, columns = span.count // span.shape[-1], span.shape[-1]
            edges, rows = bounds(columns, len(placement.ranks)), max(BLOCK * len(placement.ranks) // columns, 1)
            for start in range(0, count, rows):
                yield RowBlock(span, placement.ranks, edges, start, min(start + rows, count))


def own_part(arena: Arena, whole: Sequence[Span], flat: np.ndarray) -> np.ndarray:
    """Return the elements of this rank's arena, in its order, from a flat host array over the whole network."""
    part, spans = np.zeros(arena.count, flat.dtype), {span.name: span for span in whole}
    for span in arena.spans:
        values = flat[spans[span.name].start :][: spans[span.name].count].reshape(span.parameter.whole_shape)
        part[span.start : span.start + span.count] = span.parameter.own(values).reshape(-1)
    return part
