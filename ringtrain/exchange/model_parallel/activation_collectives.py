"""Collectives over activations, which a pass waits for: a flat buffer cut into blocks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.collectives.algorithms.all_to_all import all_to_all
from ringtrain.collectives.algorithms.sliced import all_gather, reduce_scatter
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.tags import COLUMNS


@dataclass(frozen=True, slots=True)
class ActivationCollective:
    """A prepared collective. ``edges``: the start of each block of the buffer, and the end. ``reduction`` is None in a
    rehearsal."""

    buffer: Array
    edges: Sequence[int]
    reduction: Reduction | None

    def block(self, index: int) -> Array:
        return self.buffer[self.edges[index] : self.edges[index + 1]]

    def blocks(self, first: int, rows: Sequence[int], widths: Sequence[int]) -> list[Array]:
        """Return the blocks from ``first`` on as matrices of these rows and columns."""
        shapes = zip(rows, widths, strict=True)
        return [self.block(first + i).reshape(shape) for i, shape in enumerate(shapes)]


class ActivationCollectives:
    """Prepares collectives, runs them one after another, and counts bytes and seconds.

    live: False in a rehearsal, which ranks make one by one: then no message is sent

    It uses the halves of ``sliced``: two steps at any number of ranks, since the pass waits all that time.
    """

    def __init__(self, settings: ExchangeSettings, live: bool = True):
        self.rank, self.size = settings.transport.rank, settings.transport.size
        self.ops, self._settings, self._live = settings.ops, settings, live
        self._segment_bytes = settings.config.segment_bytes or segment_for(settings.transport)
        self.bytes_sent, self.exposed_s = 0, 0.0

    def gather(self, edges: Sequence[int], name: str, dtype: DTypeLike | None = None) -> ActivationCollective:
        """Return an all-gather: block r is rank r's. ``dtype``: activations' unless given."""
        return self._prepare(all_gather(self.size), edges, f"all-gather {name}", edges[-1], dtype)

    def scatter(self, edges: Sequence[int], name: str) -> ActivationCollective:
        """Return a reduce-scatter: rank r ends with the sum of the blocks r of all ranks."""
        return self._prepare(reduce_scatter(self.size), edges, f"reduce-scatter {name}", edges[-1])

    def all_to_all(self, edges: Sequence[int], name: str, count: int) -> ActivationCollective:
        """Return an all-to-all: block d is for rank d, block size + s comes from rank s. ``count``: elements of all
        ranks."""
        return self._prepare(all_to_all(self.size), edges, f"all-to-all {name}", count)

    def _prepare(
        self, schedule: Schedule, edges: Sequence[int], name: str, count: int, dtype: DTypeLike | None = None
    ) -> ActivationCollective:
        transport, ops, guard = self._settings.transport, self.ops, self._settings.guard
        buffer = transport.scratch(edges[-1], dtype or ops.active)
        if not self._live:
            return ActivationCollective(buffer, edges, None)
        reduction: Reduction = Execution(
            schedule, transport, buffer, ops.add, COLUMNS, self._segment_bytes, ops, chunk_bounds=edges
        )
        if guard is not None:
            reduction = guard.watch(reduction, "sum", buffer.dtype, count, name)
        return ActivationCollective(buffer, edges, reduction)

    def run(self, collective: ActivationCollective) -> None:
        """Run a collective to its end."""
        if collective.reduction is None:
            return
        began = time.perf_counter()
        collective.reduction.start()
        collective.reduction.wait(self._settings.config.deadline_s)
        self.bytes_sent += collective.reduction.bytes_sent or 0
        self.exposed_s += time.perf_counter() - began
