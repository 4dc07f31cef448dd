"""Brings the arrays of fully connected layers from the ranks that hold their columns to ranks that evaluate and save
the whole network."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.monitor.guarded_transport import GuardedTransport

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

    def rows(self, flat: Array, span: Span) -> Array:
        """Return these rows of the whole parameter, or of a rank's columns of it, in an array over its arena."""
        return flat[span.start : span.start + span.count].reshape((-1, span.shape[-1]))[self.start : self.stop]


class PartGather:
    """Gathers parameters whose columns ranks divide.

    parts:    spans of the whole network, and the ranks that divide them
    arena:    this rank's, of the whole network or of its part
    is_taker: whether this rank takes them
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        parts: Sequence[tuple[Sequence[Span], Sequence[int]]],
        arena: Arena,
        is_taker: bool,
    ):
        guard, transport = settings.guard, settings.transport
        self._ops, self._rank, self._is_taker = settings.ops, transport.rank, is_taker
        self._together = transport if guard is None else GuardedTransport(transport, guard)
        self._spans = {span.name: span for span in arena.spans}
        self._plan = [block for spans, ranks in parts for span in spans for block in _blocks(span, ranks)]
        widest = max((max(np.diff(b.edges)) * (b.stop - b.start) for b in self._plan), default=0)
        groups = max(len(block.ranks) for block in self._plan)
        self._memory = [transport.scratch(int(widest), arena.weights.dtype) for _ in range(groups)]

    def gather(self, part: Array, whole: Array | None = None) -> None:
        """Bring ``part``, flat over this rank's arena, into the arrays ``whole`` of the ranks that take it, flat over
        the whole arena; None: into ``part`` itself, where that is over the whole arena. Collective."""
        self._ops.synchronize()
        for block in self._plan:
            columns = []
            for number, rank in enumerate(block.ranks):
                shape = block.stop - block.start, block.edges[number + 1] - block.edges[number]
                memory = self._memory[number][: shape[0] * shape[1]]
                if rank == self._rank:
                    self._ops.copy(block.rows(part, self._spans[block.span.name]), memory.reshape(shape))
                    self._ops.synchronize()
                self._together.broadcast(memory, rank)
                columns.append(memory.reshape(shape))
            if self._is_taker:
                self._ops.concat(columns, block.rows(part if whole is None else whole, block.span))
                self._ops.synchronize()


def _blocks(span: Span, ranks: Sequence[int]) -> list[RowBlock]:
    count, columns = span.count // span.shape[-1], span.shape[-1]
    edges, rows = bounds(columns, len(ranks)), max(BLOCK * min(len(ranks), 8) // columns, 1)
    return [RowBlock(span, ranks, edges, start, min(start + rows, count)) for start in range(0, count, rows)]


def own_part(arena: Arena, whole: Sequence[Span], flat: np.ndarray) -> np.ndarray:
    """Return the elements of this rank's arena, in its order, from a flat host array over the whole network."""
    part, spans = np.zeros(arena.count, flat.dtype), {span.name: span for span in whole}
    for span in arena.spans:
        values = flat[spans[span.name].start :][: spans[span.name].count].reshape(span.parameter.whole_shape)
        part[span.start : span.start + span.count] = span.parameter.own(values).reshape(-1)
    return part


def own_state(arena: Arena, whole: Sequence[Span], state: dict) -> dict:
    """Return this rank's part of an optimizer's state in host arrays."""
    return {name: value if name == STEP else own_part(arena, whole, value) for name, value in state.items()}
