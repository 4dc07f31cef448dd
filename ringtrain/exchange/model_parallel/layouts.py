"""Conversions between activations of a rank's own examples and activations of all examples in this rank's columns.

    own rows                       all rows               all rows, own columns               own rows
    x [n,D]  ── GatheredRows ──►  x [B,D]  ── product ──►  y [B,k] ── GatheredColumns ──►  [B,K] …
                                                                   ── LocalRows ────────────────►  y [n,K]

Backward each goes the other way. A layer with some columns gives its input one term of the gradient, over all columns.
The ranks' terms are summed where the sum is needed: this rank's rows by GatheredRows, its columns by GatheredColumns.
LocalRows gives the whole gradient already.

Shapes: n examples of this rank, B of all ranks; k columns of this rank, K of all.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollective, ActivationCollectives


def _widths(edges: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]


class GatheredRows:
    """The rows of all ranks. rows: the start of each rank's examples among all, and the end; D elements each"""

    def __init__(
        self,
        collectives: ActivationCollectives,
        name: str,
        rows: Sequence[int],
        D: int,
        dtype: DTypeLike | None = None,
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

    def __init__(
        self,
        collectives: ActivationCollectives,
        name: str,
        count: int,
        columns: Sequence[int],
        dtype: DTypeLike | None = None,
    ):
        self._collectives, self._name = collectives, name
        self._rows, self._widths = [count] * collectives.size, _widths(columns)
        self._edges = [count * column for column in columns]
        self._gather = collectives.gather(self._edges, f"of columns of {name}", dtype)
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
        self._rows, self._k = [counts[rank]] * size, self._widths[rank]
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
