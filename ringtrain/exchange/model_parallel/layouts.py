"""Between layers that see a rank's own examples and layers that see those of all ranks, but have some columns alone.

    own rows                    all rows               all rows, own columns             own rows
    x [n,D]  ── AllRows ──►  x [B,D]  ── product ──►  y [B,k] ── AllColumns ──►  [B,K] …
                                                              ── OwnRows ─────────────────►  y [n,K]

Backward each goes the other way. What a layer with some columns alone gives its input is one term of the gradient, of
all columns: the sum over ranks is made where it is needed, a rank's own rows by AllRows and its own columns by
AllColumns. From OwnRows comes the whole gradient already.

Shapes: n examples of this rank, B of all ranks; k columns of this rank, K of all.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from ringtrain.exchange import texts
from ringtrain.exchange.model_parallel.activation_collectives import ActivationCollectives


def _widths(edges: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]


class GatheredRows:
    """rows: where each rank's examples begin among those of all, and the end; D elements each"""

    def __init__(self, crossings: ActivationCollectives, name: str, rows: Sequence[int], D: int, dtype=None):
        self._crossings, self._name, self._D = crossings, name, D
        self._edges = [row * D for row in rows]
        self._gather = crossings.gather(self._edges, texts.OF_EXAMPLES(layer=name), dtype)

    @cached_property
    def _scatter(self):
        return self._crossings.scatter(self._edges, texts.GRADIENTS_FROM(layer=self._name))

    def joined(self, x_nD):
        """→ x_BD"""
        crossings = self._crossings
        crossings.ops.copy(x_nD.reshape(-1), self._gather.block(crossings.rank))
        crossings.run(self._gather)
        return self._gather.buffer.reshape((-1, self._D))

    def parted(self, dx_BD):
        """→ dx_nD, of the sum over ranks"""
        crossings = self._crossings
        crossings.ops.copy(dx_BD.reshape(-1), self._scatter.buffer)
        crossings.run(self._scatter)
        return self._scatter.block(crossings.rank).reshape((-1, self._D))


class GatheredColumns:
    """count: rows, B; columns: where each rank's columns begin, and the end

    ``own``: where the product goes, [B,k]; ``blocks`` of all ranks.
    """

    def __init__(self, crossings: ActivationCollectives, name: str, count: int, columns: Sequence[int], dtype=None):
        self._crossings, self._name = crossings, name
        self._rows, self._widths = [count] * crossings.size, _widths(columns)
        self._edges = [count * column for column in columns]
        self._gather = crossings.gather(self._edges, texts.OF_COLUMNS(layer=name), dtype)
        self.blocks = self._gather.blocks(0, self._rows, self._widths)
        self.own = self.blocks[crossings.rank]

    @cached_property
    def _scatter(self):
        return self._crossings.scatter(self._edges, texts.GRADIENTS_TO(layer=self._name))

    def joined(self, y_BK) -> None:
        self._crossings.run(self._gather)
        self._crossings.ops.concat(self.blocks, y_BK)

    def parted(self, dy_BK):
        """→ dy_Bk, of the sum over ranks"""
        blocks = self._scatter.blocks(0, self._rows, self._widths)
        self._crossings.ops.concat_back(dy_BK, blocks)
        self._crossings.run(self._scatter)
        return blocks[self._crossings.rank]


class LocalRows:
    """rows, columns: as above. ``own``: where the product goes, [B,k]"""

    def __init__(self, crossings: ActivationCollectives, name: str, rows: Sequence[int], columns: Sequence[int]):
        self._crossings, self._name = crossings, name
        rank, size = crossings.rank, crossings.size
        self._counts, self._widths = _widths(rows), _widths(columns)
        self._n, self._k = self._counts[rank], self._widths[rank]
        self._by_rows = [row * self._k for row in rows]
        self._by_columns = [self._n * column for column in columns]
        self._count = rows[-1] * columns[-1]
        self._forward = self._turn(self._by_rows, self._by_columns, texts.OF_ROWS(layer=name))
        self.own = self._forward.buffer[: self._by_rows[-1]].reshape((rows[-1], self._k))
        self._arrived = self._forward.blocks(size, [self._n] * size, self._widths)

    def _turn(self, out: Sequence[int], back: Sequence[int], what: str):
        edges = [*out, *(out[-1] + edge for edge in back[1:])]
        return self._crossings.turn(edges, what, self._count)

    @cached_property
    def _backward(self):
        return self._turn(self._by_columns, self._by_rows, texts.GRADIENTS_TO(layer=self._name))

    def joined(self, y_nK) -> None:
        self._run(self._forward)
        self._crossings.ops.concat(self._arrived, y_nK)

    def parted(self, dy_nK):
        """→ dy_Bk"""
        backward, size = self._backward, self._crossings.size
        self._crossings.ops.concat_back(dy_nK, backward.blocks(0, [self._n] * size, self._widths))
        self._run(backward)
        return backward.buffer[self._by_columns[-1] :].reshape((-1, self._k))

    def _run(self, crossing) -> None:
        rank, size = self._crossings.rank, self._crossings.size
        self._crossings.ops.copy(crossing.block(rank), crossing.block(size + rank))
        self._crossings.run(crossing)
