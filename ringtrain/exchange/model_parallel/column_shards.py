"""The columns that are this rank's: copies of their own, which products want contiguous.

In the arena a weight is [D, K] by rows, so that columns lie apart. This rank's k of them are kept here as [D, k], with
gradients and optimizer state, and are brought to the arena of every rank when somebody wants to see it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringtrain.collectives.schedule import bounds
from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollectives
from ringtrain.exchange.model_parallel.layouts import GatheredColumns
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.clip import trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span

BLOCK = 1 << 20  # elements of a parameter that are brought together at a time, about


class ColumnShards:
    """``weights`` and ``grads``: by layer and short name, of this rank's columns, once bound."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._ops, self._transport = settings, settings.ops, settings.transport
        self._crossings = ActivationCollectives(settings)
        self._blocks: dict[tuple[int, int], GatheredColumns] = {}
        self.weights: dict[str, dict] = {}
        self.grads: dict[str, dict] = {}

    def edges(self, K: int) -> list[int]:
        """Where each rank's columns begin, of K, and the end."""
        return bounds(K, self._transport.size)

    def bind(self, spans: Sequence[Span], optimizer) -> None:
        """``spans``: of the arena, those whose columns are divided."""
        self._spans = spans
        table = tuple((span.name, replace(span.parameter, shape=self._shape(span))) for span in spans)
        self._arena = arena = Arena(self._transport.scratch, table, self._ops.dtype)
        for span in arena.spans:
            layer, _, short = span.name.rpartition(".")
            self.weights.setdefault(layer, {})[short] = arena.weight(span)
            self.grads.setdefault(layer, {})[short] = arena.grad(span)
        own = type(optimizer)(arena.spans, optimizer.hyper)
        self._update = OwnedUpdate(self._ops, arena, own, arena.grads, everything(arena))
        self._trained = trained_runs(arena.spans)

    def _shape(self, span: Span) -> tuple[int, ...]:
        edges, rank = self.edges(span.shape[-1]), self._transport.rank
        return (*span.shape[:-1], edges[rank + 1] - edges[rank])

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────
    @property
    def slots(self) -> dict:
        return self._update.slots

    @property
    def step(self) -> int:
        return self._update.step

    def rehearse(self) -> None:
        self._update.rehearse()
        nothing = self._arena.grads[:0]
        self._ops.copy(nothing, nothing)

    def square_sum(self) -> float:
        """Of this rank's gradients."""
        return sum(self._ops.square_sum(self._arena.grads[start:stop]) for start, stop in self._trained)

    def scale(self, factor: float) -> None:
        for start, stop in self._trained:
            self._ops.scale(self._arena.grads[start:stop], factor)

    def apply(self, lr: float) -> None:
        """Update all of them. Norms of parameters are made of those of all ranks' columns."""
        self._update.step += 1
        if self._update.layerwise:
            self._update.prepare(self._add_over_ranks)
        self._update.apply(lr, 0, self._arena.count)

    def _add_over_ranks(self, numbers: np.ndarray) -> None:
        self._transport.native_allreduce_start(numbers).wait(self._settings.config.deadline_s)

    # ── to and from the arena ─────────────────────────────────────────────────────────────────────────────
    def load(self, weights) -> None:
        """From whole parameters, an array over the arena."""
        self._take(weights, self._arena.weights)

    def store(self, weights) -> None:
        """The reverse: those of all ranks, on every rank. Collective."""
        self._give(self._arena.weights, weights)

    def store_slot(self, name: str, flat) -> None:
        """A part of the optimizer's state, likewise. Collective."""
        self._give(self.slots[name], flat)

    def load_slot(self, name: str, flat) -> None:
        self._take(flat, self.slots[name])

    def begin_at(self, step: int) -> None:
        self._update.step = step

    def _take(self, whole, flat) -> None:
        for blocks, some, own in self._walk(whole, flat):
            self._ops.concat_back(some, blocks.blocks)
            self._ops.copy(blocks.own, own)

    def _give(self, flat, whole) -> None:
        for blocks, some, own in self._walk(whole, flat):
            self._ops.copy(own, blocks.own)
            blocks.joined(some)

    def _walk(self, whole, flat):
        """Some rows of each parameter at a time: room for them, they themselves, and this rank's columns of them."""
        for span, part in zip(self._spans, self._arena.spans, strict=True):
            K, k = span.shape[-1], part.shape[-1]
            theirs = whole[span.start : span.start + span.count].reshape((-1, K))
            ours = flat[part.start : part.start + part.count].reshape((-1, k))
            rows = max(BLOCK // K, 1)
            for start in range(0, theirs.shape[0], rows):
                some = theirs[start : start + rows]
                yield self._room(some.shape[0], K), some, ours[start : start + rows]

    def _room(self, rows: int, K: int) -> GatheredColumns:
        if (rows, K) not in self._blocks:
            self._blocks[rows, K] = GatheredColumns(self._crossings, "parameters", rows, self.edges(K), self._ops.dtype)
        return self._blocks[rows, K]
