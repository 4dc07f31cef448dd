"""What ranks exchange in the middle of a pass, and wait for: collectives over a flat buffer that is cut into blocks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.collectives.algorithms.all_to_all import all_to_all
from ringtrain.collectives.algorithms.sliced import all_gather, reduce_scatter
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.exchange import texts
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.tags import COLUMNS


@dataclass(frozen=True, slots=True)
class ActivationCollective:
    """One of them, prepared. ``edges``: where the blocks of the buffer begin, and the end. ``reduction`` is None where
    nothing travels."""

    buffer: object
    edges: Sequence[int]
    reduction: Reduction | None

    def block(self, index: int):
        return self.buffer[self.edges[index] : self.edges[index + 1]]

    def blocks(self, first: int, rows: Sequence[int], widths: Sequence[int]) -> list:
        """Blocks from ``first`` on, as matrices of so many rows and columns each."""
        shapes = zip(rows, widths, strict=True)
        return [self.block(first + i).reshape(shape) for i, shape in enumerate(shapes)]


class ActivationCollectives:
    """Prepares them, runs them one after another, and counts.

    live: whether anything travels. In a rehearsal nothing does: ranks come to it one by one

    By the halves of ``sliced``: of two steps at any number of ranks, since all that time is waited for.
    """

    def __init__(self, settings: ExchangeSettings, live: bool = True):
        self.rank, self.size = settings.transport.rank, settings.transport.size
        self.ops, self._settings, self._live = settings.ops, settings, live
        self._segment_bytes = settings.config.segment_bytes or segment_for(settings.transport)
        self.bytes_sent, self.exposed_s = 0, 0.0

    def gather(self, edges: Sequence[int], what: str, dtype=None) -> ActivationCollective:
        """Block r is rank r's; then all ranks have all blocks. ``dtype``: activations' unless given."""
        return self._prepare(all_gather(self.size), edges, texts.ALL_GATHER(what=what), edges[-1], dtype)

    def scatter(self, edges: Sequence[int], what: str) -> ActivationCollective:
        """Then rank r has the sum of the block r of all ranks."""
        return self._prepare(reduce_scatter(self.size), edges, texts.REDUCE_SCATTER(what=what), edges[-1])

    def turn(self, edges: Sequence[int], what: str, count: int) -> ActivationCollective:
        """Block d is for rank d; block size + s is then what rank s has for this one. ``count``: elements of all
        ranks."""
        return self._prepare(all_to_all(self.size), edges, texts.ALL_TO_ALL(what=what), count)

    def _prepare(
        self, schedule: Schedule, edges: Sequence[int], what: str, count: int, dtype=None
    ) -> ActivationCollective:
        buffer = self._settings.transport.scratch(edges[-1], dtype or self.ops.active)
        return ActivationCollective(
            buffer, edges, self._reduction(schedule, buffer, edges, what, count) if self._live else None
        )

    def _reduction(self, schedule, buffer, edges, what: str, count: int) -> Reduction:
        made = Execution(
            schedule,
            self._settings.transport,
            buffer,
            self.ops.add,
            tag=COLUMNS,
            segment_bytes=self._segment_bytes,
            device=self.ops,
            chunk_bounds=edges,
        )
        guard = self._settings.guard
        return made if guard is None else guard.watch(made, "sum", buffer.dtype, count, what)

    def run(self, crossing: ActivationCollective) -> None:
        """Return when it is done."""
        if crossing.reduction is None:
            return
        began = time.perf_counter()
        crossing.reduction.start()
        crossing.reduction.wait(self._settings.config.deadline_s)
        self.bytes_sent += crossing.reduction.bytes_sent
        self.exposed_s += time.perf_counter() - began
