"""This rank's columns of the divided layers, in memory of their own: products need contiguous columns.

In the arena a weight is [D, K] by rows, so columns are not contiguous. This rank's k columns are kept as [D, k], with
gradients and optimizer state, and are gathered in the arena of every rank for an evaluation or a checkpoint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollectives
from ringtrain.exchange.model_parallel.layouts import GatheredColumns
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, everything
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.optim.optimizers import Optimizer

BLOCK = 1 << 20  # elements of a parameter that are gathered at a time, about


class ColumnShards:
    """This rank's columns. ``weights`` and ``grads``: by layer and short name, once bound."""

    def __init__(self, settings: ExchangeSettings):
        self._ops, self._transport = settings.ops, settings.transport
        self._collectives, self._sum_over_ranks = ActivationCollectives(settings), SumOverRanks(settings)
        self._blocks: dict[tuple[int, int], GatheredColumns] = {}
        self.weights: dict[str, dict] = {}
        self.grads: dict[str, dict] = {}
        self._loaded = False  # whether the columns have been taken from the arena
        self._newer = False  # whether they are newer than the arena's

    def edges(self, K: int) -> list[int]:
        """Return the start of each rank's columns among K, and the end."""
        return bounds(K, self._transport.size)

    def bind(self, spans: Sequence[Span], optimizer: Optimizer) -> None:
        """Make memory for this rank's columns of ``spans`` of the arena."""
        self._spans = spans
        table = tuple((span.name, replace(span.parameter, shape=self._shape(span))) for span in spans)
        self._arena = arena = Arena(self._transport.scratch, table, self._ops.dtype)
        for span in arena.spans:
            layer, _, short = span.name.rpartition(".")
            self.weights.setdefault(layer, {})[short] = arena.weight(span)
            self.grads.setdefault(layer, {})[short] = arena.grad(span)
        part_optimizer, pieces = type(optimizer)(arena.spans, optimizer.hyper), everything(arena)
        add = self._sum_over_ranks.add
        self.update = OwnedUpdate(self._ops, arena, part_optimizer, arena.grads, pieces, add_norms=add)

    def _shape(self, span: Span) -> tuple[int, ...]:
        edges, rank = self.edges(span.shape[-1]), self._transport.rank
        return (*span.shape[:-1], edges[rank + 1] - edges[rank])

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────
    @property
    def slots(self) -> dict:
        return self.update.slots

    def square_sum(self) -> float:
        """Return the sum of squares of the gradients of all ranks' columns. Collective."""
        grads, trained = self._arena.grads, self.update.trained
        return self._sum_over_ranks(sum(self._ops.square_sum(grads[start:stop]) for start, stop in trained))

    def scale(self, factor: float) -> None:
        for start, stop in self.update.trained:
            self._ops.scale(self._arena.grads[start:stop], factor)

    def apply(self, lr: float) -> None:
        """Update this rank's columns. Norms of parameters are over all ranks' columns."""
        self._newer = True
        self.update.begin(lr)
        self.update.apply()

    # ── to and from the arena ─────────────────────────────────────────────────────────────────────────────
    def load(self, weights: Array) -> None:
        """Copy the columns from whole parameters, an array over the arena, unless they have been taken from it."""
        if not self._loaded:
            self._scatter(weights, self._arena.weights)
        self._loaded = True

    def store(self, weights: Array) -> None:
        """Gather the columns of all ranks in whole parameters, on every rank, if they have been updated. Collective."""
        if self._newer:
            self._gather(self._arena.weights, weights)
        self._newer = False

    def store_slot(self, name: str, flat: Array) -> None:
        """Gather a slot of the optimizer's state. Collective."""
        self._gather(self.slots[name], flat)

    def restore(self, state: dict, memory: Array, cut: int) -> None:
        """Continue from a whole state in host arrays, with the arena's weights. ``memory``: a flat array over the
        arena, which is free; ``cut``: the first element of these layers in it."""
        for name in self.slots:
            self._ops.upload(state[name][cut:], memory[cut:])
            self._scatter(memory, self.slots[name])
        self.update.step = int(state[STEP])
        self._loaded = self._newer = False

    def _scatter(self, whole: Array, flat: Array) -> None:
        for columns, rows, ours in self._walk(whole, flat):
            self._ops.concat_back(rows, columns.blocks)
            self._ops.copy(columns.product, ours)

    def _gather(self, flat: Array, whole: Array) -> None:
        for columns, rows, ours in self._walk(whole, flat):
            self._ops.copy(ours, columns.product)
            columns.gather(rows)

    def _walk(self, whole: Array, flat: Array) -> Iterator[tuple[GatheredColumns, Array, Array]]:
        """Yield some rows of each parameter at a time: memory for all columns, the rows, this rank's columns."""
        for span, part in zip(self._spans, self._arena.spans, strict=True):
            K, k = span.shape[-1], part.shape[-1]
            theirs = whole[span.start : span.start + span.count].reshape((-1, K))
            ours = flat[part.start : part.start + part.count].reshape((-1, k))
            rows = max(BLOCK // K, 1)
            for start in range(0, theirs.shape[0], rows):
                some = theirs[start : start + rows]
                yield self._columns(some.shape[0], K), some, ours[start : start + rows]

    def _columns(self, rows: int, K: int) -> GatheredColumns:
        if (rows, K) not in self._blocks:
            self._blocks[rows, K] = GatheredColumns(
                self._collectives, "parameters", rows, self.edges(K), self._ops.dtype
            )
        return self._blocks[rows, K]
