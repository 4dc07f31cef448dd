"""PowerSGD: ranks sum two thin factors of each matrix of gradients, one step of a power iteration.

M [m, n] is the gradient of one parameter plus the residual, on one rank; r the rank of the factors; Q [n, r] the second
factor of the last iteration, the same on all ranks:

1. Orthonormalise Q's columns. P = M·Q, summed over ranks.
2. Orthonormalise P's columns, on every rank alike. Q = Mᵀ·P; the residual is M - P·Qᵀ. Then sum Q over ranks.
3. The sum of the gradients is approximated by P·Qᵀ.

All steps are linear in M except the basis P, which all ranks share: P·Qᵀ is the projected sum of all M. Learning
depends only on that sum, however the ranks divide it.

*Warm start*: Q is kept from iteration to iteration, so that its columns turn to the important directions. The authors'
residual is M minus the mean of the parts that all ranks sent; here it is M minus the part that this rank sent. The sums
over ranks are equal, and this one does not grow with the difference between ranks. The authors do not orthonormalise Q
before P = M·Q; only its span matters, and orthonormal columns lose less to rounding, and none to a gradient of 0.

A parameter is a matrix as it is stored, its last axis as columns: [R·S·C, K] of a convolution, [D, K] of a linear
layer. Ranks send its factors if they are smaller, r·(m + n) < m·n, and otherwise the parameter, in the same message as
the Ps.

The second sum of a bucket waits for its first, and all ranks start all sums in one order: all second sums start, bucket
by bucket, when the loop waits for the first bucket.

Bytes a rank sends: 2(p-1)/p · 4r·(m + n) of a matrix of float32, in place of 2(p-1)/p · 4m·n.

Source: Vogels, Karimireddy & Jaggi, PowerSGD: practical low-rank gradient compression for distributed optimization,
NeurIPS 2019, algorithms 1 and 2
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import ConfigError
from ringtrain.exchange.compression.method import (
    CompressedSum,
    CompressionContext,
    Compressor,
    least_bytes,
    slices,
    uncompressed_parts,
)
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops

BASIS = "basis"


@dataclass(frozen=True, slots=True)
class MatrixFactors:
    """Views of one parameter."""

    span: Span
    residual: Array  # the gradient plus the residual, then the new residual, [M, N]
    total: Array  # the gradient, then the sum, [M, N]
    p: Array  # the factors, [M, r] and [N, r]
    q: Array  # the factors, [M, r] and [N, r]


class PowerSGD(Compressor):
    """PowerSGD with factors of ``rank`` columns."""

    state_names = (BASIS,)

    def __init__(self, rank: int):
        self._rank = rank
        self.header = f"PowerSGD of rank {rank}"

    def compresses(self, span: Span) -> bool:
        rows, columns = matrix_of(span)
        return span.parameter.role == "weight" and self._rank * (rows + columns) < rows * columns

    def bind(self, context: CompressionContext) -> Sequence[Reduction]:
        taken = [[span for span in bucket.spans if self.compresses(span)] for bucket in context.buckets]
        if not any(taken):
            raise ConfigError(
                f"--compress powersgd with --compress-rank {self._rank} compresses nothing: no matrix of this model "
                "is larger than its two factors of that rank. Give a lower rank, or --compress top-k"
            )
        self._ops = context.ops
        rows, columns = ([[self._rank * matrix_of(s)[i] for s in spans] for spans in taken] for i in (0, 1))
        pieces = slices([sum(each) for each in columns])
        qs = context.transport.allocate(pieces[-1][1], context.buffer.dtype)
        seconds = context.sums(qs, pieces, context.round + 1)
        whole = uncompressed_parts(context, self.compresses, [sum(each) for each in rows])
        self.matrices = [
            [
                self._matrix(context, span, each.more[a:b], qs[start + c : start + d])
                for span, (a, b), (c, d) in zip(spans, slices(m), slices(n), strict=True)
            ]
            for spans, each, m, n, (start, _) in zip(taken, whole, rows, columns, pieces, strict=True)
        ]
        group: list[_PowerSGDSum] = []
        group += [
            _PowerSGDSum(context.ops, *each, group=group) for each in zip(self.matrices, whole, seconds, strict=True)
        ]
        return group

    def _matrix(self, context: CompressionContext, span: Span, p: Array, q: Array) -> MatrixFactors:
        (rows, columns), rank = matrix_of(span), self._rank
        residual, total = (part(span).reshape((rows, columns)) for part in (context.residual_of, context.gradient_of))
        return MatrixFactors(span, residual, total, p.reshape((rows, rank)), q.reshape((columns, rank)))

    def least_bytes(self, span: Span, itemsize: int, size: int) -> int:
        return least_bytes(self._rank * sum(matrix_of(span)), itemsize, size)

    def rehearse(self, ops: Ops) -> None:
        x = ops.zeros((1, 1))
        ops.orthonormalise(x)
        ops.product(x, x, ops.zeros((1, 1)), a_transposed=True, accumulate=True)

    # ── state: each Q, column by column, where the parameter begins ───────────────────────────────────────────
    def state(self, count: int) -> dict:
        flat = np.zeros(count, self._ops.dtype)
        for matrix in self._all():
            q = self._ops.to_host(matrix.q)
            flat[matrix.span.start : matrix.span.start + q.size] = q.T.reshape(-1)
        return {BASIS: flat}

    def restore(self, state: dict) -> None:
        """Take the factors, from a state of another rank as many columns as there are; the rest begins anew."""
        for matrix in self._all() if BASIS in state else ():
            start, (n, r) = matrix.span.start, matrix.q.shape
            columns = state[BASIS][start : start + min(n * r, matrix.span.count)]
            self._ops.upload(np.ascontiguousarray(columns.reshape(r, n).T), matrix.q)

    def _all(self) -> Iterator[MatrixFactors]:
        return (matrix for bucket in self.matrices for matrix in bucket)


def matrix_of(span: Span) -> tuple[int, int]:
    """Return the rows and columns of a parameter as a matrix."""
    return span.count // span.shape[-1], span.shape[-1]


IDLE, FIRST, SECOND = range(3)


class _PowerSGDSum(CompressedSum):
    """The sum of one bucket; ``other`` is the second. ``group``: the sums of all buckets, in the order in which they
    start."""

    algorithm, _phase = "PowerSGD", IDLE

    def __init__(self, *arguments, group: "list[_PowerSGDSum]"):
        super().__init__(*arguments)
        self._group = group

    def announce(self) -> None:
        self._whole.sum.announce()

    def start(self) -> None:
        self._phase = FIRST
        self._whole.pack()
        for m in self._parts:
            self._ops.add(m.residual, m.total, m.residual)
            self._ops.orthonormalise(m.q)
            self._ops.product(m.residual, m.q, m.p)
        self._whole.sum.start()

    def test(self) -> bool:
        """Whether the sum is done: never before the loop has waited for one of the group."""
        if self._phase == FIRST:
            self._whole.sum.test()
        elif self._phase == SECOND and self._other.test():
            self._finish()
        return self._phase == IDLE

    def wait(self, deadline_s: float) -> None:
        for each in self._group:
            each.start_second(deadline_s)
        if self._phase == SECOND:
            self._other.wait(deadline_s)
            self._finish()

    def start_second(self, deadline_s: float) -> None:
        """Wait for the first sum, if it was started, and start the second."""
        if self._phase != FIRST:
            return
        self._whole.sum.wait(deadline_s)
        for m in self._parts:
            self._ops.orthonormalise(m.p)
            self._ops.product(m.residual, m.p, m.q, a_transposed=True)
            # Subtract the part that this rank sends: M - P·Qᵀ.
            self._ops.scale(m.q, -1.0)
            self._ops.product(m.p, m.q, m.residual, b_transposed=True, accumulate=True)
            self._ops.scale(m.q, -1.0)
        self._other.start()
        self._phase = SECOND

    def _finish(self) -> None:
        self._phase = IDLE
        self._whole.unpack()
        for m in self._parts:
            self._ops.product(m.p, m.q, m.total, b_transposed=True)
