"""Conversions between activations of a rank's own examples and activations of all examples in this rank's columns.

    own rows                       all rows               all rows, own columns               own rows
    x [n,D]  ── GatheredRows ──►  x [B,D]  ── product ──►  y [B,k] ── GatheredColumns ──►  [B,K] …
                                                                   ── LocalRows ────────────────►  y [n,K]

Backward each goes the other way. A layer with some columns gives its input one term of the gradient, over all columns.
The ranks' terms are summed where the sum is needed: this rank's rows by GatheredRows, its columns by GatheredColumns.
LocalRows gives the whole gradient already.

Shapes: n examples of this rank, B of all ranks; k columns of this rank, K of all.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.collectives.algorithms.all_to_all import all_to_all
from ringtrain.collectives.algorithms.sliced import all_gather, reduce_scatter
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.exchange.buckets.ownership import execution
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

    def blocks(self, first: int, rows: int, widths: Sequence[int]) -> list[Array]:
        """Return the blocks from ``first`` on as matrices of so many rows and of these columns."""
        return [self.block(first + i).reshape((rows, width)) for i, width in enumerate(widths)]


class ActivationCollectives:
    """Prepares collectives, runs them one after another, and counts bytes and seconds.

    live: False in a rehearsal, which ranks make one by one: then no message is sent

    It uses the halves of ``sliced``: two steps at any number of ranks, since the pass waits all that time.
    """

    def __init__(self, settings: ExchangeSettings, live: bool = True):
        self.rank, self.size = settings.transport.rank, settings.transport.size
        self.ops, self._settings, self._live = settings.ops, settings, live
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
        settings, ops = self._settings, self.ops
        buffer = settings.transport.scratch(edges[-1], dtype or ops.active)
        if not self._live:
            return ActivationCollective(buffer, edges, None)
        run = execution(settings, ops, schedule, buffer, COLUMNS, name, count=count, chunk_bounds=edges)
        return ActivationCollective(buffer, edges, run)

    def run(self, collective: ActivationCollective) -> None:
        """Run a collective to its end."""
        if collective.reduction is None:
            return
        began = time.perf_counter()
        collective.reduction.start()
        collective.reduction.wait(self._settings.config.deadline_s)
        self.bytes_sent += collective.reduction.bytes_sent or 0
        self.exposed_s += time.perf_counter() - began


def _widths(edges: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]


class GatheredRows:
    """The rows of all ranks. rows: the start of each rank's examples among all, and the end; D elements each"""

    def __init__(
        self, collectives: ActivationCollectives, name: str, rows: Sequence[int], D: int, dtype: DTypeLike | None = None
    ):
        self._collectives, self._name, self._D = collectives, name, D
        self._edges = [row * D for row in rows]
        self._gather = collectives.gather(self._edges, f"of examples for {name}", dtype)

    @cached_property
    def _scatter(self) -> ActivationCollective:
        return self._collectives.scatter(self._edges, f"of gradients from {self._name}")

    def gather(self, x_nD: Array) -> Array:
        """→ x_BD"""
        collectives = self._collectives
        collectives.ops.copy(x_nD.reshape(-1), self._gather.block(collectives.rank))
        collectives.run(self._gather)
        return self._gather.buffer.reshape((-1, self._D))

    def scatter(self, dx_BD: Array) -> Array:
        """→ dx_nD, of the sum over ranks"""
        collectives = self._collectives
        collectives.ops.copy(dx_BD.reshape(-1), self._scatter.buffer)
        collectives.run(self._scatter)
        return self._scatter.block(collectives.rank).reshape((-1, self._D))


class GatheredColumns:
    """The columns of all ranks. count: rows, B; columns: the start of each rank's columns, and the end

    ``product``: the output of the product, [B,k]; ``blocks`` of all ranks.
    """

    def __init__(self, collectives: ActivationCollectives, name: str, count: int, columns: Sequence[int]):
        self._collectives, self._name = collectives, name
        self._rows, self._widths = count, _widths(columns)
        self._edges = [count * column for column in columns]
        self._gather = collectives.gather(self._edges, f"of columns of {name}")
        self.blocks = self._gather.blocks(0, self._rows, self._widths)
        self.product = self.blocks[collectives.rank]

    @cached_property
    def _scatter(self) -> ActivationCollective:
        return self._collectives.scatter(self._edges, f"of gradients to {self._name}")

    def gather(self, y_BK: Array) -> None:
        self._collectives.run(self._gather)
        self._collectives.ops.concat(self.blocks, y_BK)

    def scatter(self, dy_BK: Array) -> Array:
        """→ dy_Bk, of the sum over ranks"""
        blocks = self._scatter.blocks(0, self._rows, self._widths)
        self._collectives.ops.concat_back(dy_BK, blocks)
        self._collectives.run(self._scatter)
        return blocks[self._collectives.rank]


class LocalRows:
    """This rank's rows, in all columns. rows, columns: as above. ``product``: the output of the product, [B,k]"""

    def __init__(self, collectives: ActivationCollectives, name: str, rows: Sequence[int], columns: Sequence[int]):
        self._collectives, self._name = collectives, name
        rank, size = collectives.rank, collectives.size
        counts, self._widths = _widths(rows), _widths(columns)
        self._rows, self._k = counts[rank], self._widths[rank]
        self._by_rows = [row * self._k for row in rows]
        self._by_columns = [counts[rank] * column for column in columns]
        self._count = rows[-1] * columns[-1]
        self._forward = self._all_to_all(self._by_rows, self._by_columns, f"of rows of {name}")
        self.product = self._forward.buffer[: self._by_rows[-1]].reshape((rows[-1], self._k))
        self._arrived = self._forward.blocks(size, self._rows, self._widths)

    def _all_to_all(self, out: Sequence[int], back: Sequence[int], name: str) -> ActivationCollective:
        edges = [*out, *(out[-1] + edge for edge in back[1:])]
        return self._collectives.all_to_all(edges, name, self._count)

    @cached_property
    def _backward(self) -> ActivationCollective:
        return self._all_to_all(self._by_columns, self._by_rows, f"of gradients to {self._name}")

    def gather(self, y_nK: Array) -> None:
        self._run(self._forward)
        self._collectives.ops.concat(self._arrived, y_nK)

    def scatter(self, dy_nK: Array) -> Array:
        """→ dy_Bk"""
        self._collectives.ops.concat_back(dy_nK, self._backward.blocks(0, self._rows, self._widths))
        self._run(self._backward)
        return self._backward.buffer[self._by_columns[-1] :].reshape((-1, self._k))

    def _run(self, collective: ActivationCollective) -> None:
        rank, size = self._collectives.rank, self._collectives.size
        self._collectives.ops.copy(collective.block(rank), collective.block(size + rank))
        self._collectives.run(collective)


class MicrobatchLayout:
    """The examples of one micro-batch, by rank: ``counts``; ``local`` of ``total`` are this rank's.

    ``rows``: the start of each rank's examples, and the end. ``examples``: the data-set index of each, after
    :meth:`gather_examples`.
    """

    def __init__(self, collectives: ActivationCollectives, counts: Sequence[int]):
        self._collectives = collectives
        self._prepared: dict[str, Any] = {}
        self.rows = [0, *accumulate(counts)]
        self.total, self.local = self.rows[-1], counts[collectives.rank]
        self.examples: Array | None = None

    def gather_examples(self, own_n: Array) -> None:
        """Shapes: int64 [n] of this rank; ``examples`` is then [total], of all"""
        rows = self.prepared(GatheredRows, "random numbers", self.rows, 1, own_n.dtype)
        self.examples = rows.gather(own_n).reshape((self.total,))

    def prepared(self, kind: Callable, name: str, *arguments) -> Any:
        """Return the conversion ``kind`` of this name, prepared at its first use."""
        if name not in self._prepared:
            self._prepared[name] = kind(self._collectives, name, *arguments)
        return self._prepared[name]


class MicrobatchLayouts:
    """The layouts of an iteration's micro-batches. Before the first iteration there are rehearsals, in which a rank is
    alone."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._parts = settings, settings.accumulate
        self.collectives = ActivationCollectives(settings)
        self._layouts: dict[tuple[int, tuple[int, ...]], MicrobatchLayout] = {}
        self._slot = 0
        self._counts: list[tuple[int, ...]] = []  # of each micro-batch of this iteration
        self._next = 0
        self._current: MicrobatchLayout | None = None

    @property
    def rank(self) -> int:
        return self.collectives.rank

    @property
    def ranks(self) -> int:
        """The number of ranks that divide columns."""
        return self.collectives.size

    @property
    def current(self) -> MicrobatchLayout:
        """The layout of the micro-batch that has begun."""
        assert self._current is not None
        return self._current

    def iterate(self, total: int, slot: int = 0) -> None:
        """Begin an iteration of ``total`` examples. Layouts of two slots have memory of their own: a pass of one may
        begin before the other's backward."""
        self._slot = slot
        counts = [self._share(total, rank, self.ranks) for rank in range(self.ranks)]
        self._counts = [tuple(self._share(count, part, self._parts) for count in counts) for part in range(self._parts)]
        self._next = 0

    def _share(self, count: int, part: int, parts: int) -> int:
        assert self._settings.share is not None  # the assembly gives it
        start, stop = self._settings.share(count, part, parts)
        return stop - start

    def begin(self, local: int) -> MicrobatchLayout:
        """Return the layout of the next micro-batch, of which this rank has ``local`` examples. The first follows the
        last: a loss that is not finite is examined by computing all of them once more."""
        if not self._counts:
            alone = [local if rank == self.rank else 0 for rank in range(self.ranks)]
            self._current = MicrobatchLayout(ActivationCollectives(self._settings, live=False), alone)
            return self._current
        counts = self._counts[self._next % self._parts]
        self._next += 1
        key = self._slot, counts
        if key not in self._layouts:
            self._layouts[key] = MicrobatchLayout(self.collectives, counts)
        self._current = self._layouts[key]
        return self._current
