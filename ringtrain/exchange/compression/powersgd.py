"""PowerSGD: of each matrix of gradients ranks sum two thin factors, one step of a power iteration.

M [m, n] is what a rank has to give of one parameter, its gradient and its residual; r the rank of the factors; Q [n, r]
what the last iteration ended with, the same on all ranks:

1. Q's columns are made orthonormal. P = M·Q, summed over ranks.
2. P's columns are made orthonormal, on every rank alike. Q = Mᵀ·P: the residual is what M has besides P·Qᵀ. Then Q is
   summed over ranks.
3. The sum of the gradients is taken to be P·Qᵀ.

Everything is linear in M but for the basis P, which all ranks share: P·Qᵀ is the sum of all M, projected. That sum of M
is all that is learnt from, whichever rank holds what of it.

*Warm start*: Q goes on from iteration to iteration, so that its columns turn to the directions that matter. The
authors' residual is M less the mean of what all sent; here it is M less what this rank sent itself. Their sums are
equal, and this one does not grow with what is different from rank to rank. They leave Q as it is before P = M·Q; its
span is all that counts, and orthonormal columns lose less to rounding, and none to a gradient that was 0.

A parameter is seen as it is stored, its last axis as columns: [R·S·C, K] of a convolution, [D, K] of a linear layer. It
goes in factors where those are smaller, r·(m + n) < m·n, and otherwise whole, in the same message as the Ps.

The second sum of a bucket waits for its first, and ranks begin all sums in one order: so all second sums begin, bucket
by bucket, when the first bucket is waited for.

Bytes a rank sends: 2(p-1)/p · 4r·(m + n) of a matrix of float32, in place of 2(p-1)/p · 4m·n.

Source: Vogels, Karimireddy & Jaggi, PowerSGD: practical low-rank gradient compression for distributed optimization,
NeurIPS 2019, algorithms 1 and 2
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.collectives.execution.execute import MESSAGES
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import ConfigError
from ringtrain.exchange import texts
from ringtrain.exchange.compression.method import Compressor, Site, UncompressedPart, cuts, least_bytes, sent, wholes

BASIS = "basis"


@dataclass(frozen=True, slots=True)
class MatrixFactors:
    """One parameter, in views: what a rank has to give, [M, N], which becomes its residual; what the sum is written to,
    [M, N]; the factors, [M, r] and [N, r]."""

    span: object
    given: object
    total: object
    p: object
    q: object


class PowerSGD(Compressor):
    """rank: r, the columns of the factors"""

    held = (BASIS,)

    def __init__(self, rank: int):
        self._rank = rank
        self.header = texts.POWERSGD(rank=rank)

    def takes(self, span) -> bool:
        rows, columns = matrix_of(span)
        return span.parameter.role == "weight" and self._rank * (rows + columns) < rows * columns

    def bind(self, site: Site) -> list[Reduction]:
        taken = [[span for span in bucket.spans if self.takes(span)] for bucket in site.buckets]
        if not any(taken):
            raise ConfigError(texts.COMPRESSES_NOTHING(rank=self._rank))
        self._ops = site.ops
        rows, columns = ([[self._rank * matrix_of(s)[i] for s in spans] for spans in taken] for i in (0, 1))
        pieces = cuts([sum(each) for each in columns])
        qs = site.transport.allocate(pieces[-1][1], site.buffer.dtype)
        seconds = site.sums(qs, pieces, site.round + 1)
        whole = wholes(site, self.takes, [sum(each) for each in rows])
        self.matrices = [
            [
                self._matrix(site, span, each.more[a:b], qs[start + c : start + d])
                for span, (a, b), (c, d) in zip(spans, cuts(m), cuts(n), strict=True)
            ]
            for spans, each, m, n, (start, _) in zip(taken, whole, rows, columns, pieces, strict=True)
        ]
        group: list[_PowerSGDSum] = []
        group += [_PowerSGDSum(site.ops, *each, group) for each in zip(self.matrices, whole, seconds, strict=True)]
        return group

    def _matrix(self, site: Site, span, p, q) -> MatrixFactors:
        (rows, columns), rank = matrix_of(span), self._rank
        given, total = (part(span).reshape(rows, columns) for part in (site.memory, site.gradient))
        return MatrixFactors(span, given, total, p.reshape(rows, rank), q.reshape(columns, rank))

    def least_bytes(self, span, itemsize: int, size: int) -> int:
        return least_bytes(self._rank * sum(matrix_of(span)), itemsize, size)

    def rehearse(self, ops) -> None:
        x = ops.zeros((1, 1))
        ops.copy(x, x)
        ops.scale(x, 1.0)
        ops.add(x, x, x)
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
        """Of another rank as many columns as there are; what is missing begins anew."""
        for matrix in self._all() if BASIS in state else ():
            start, (n, r) = matrix.span.start, matrix.q.shape
            columns = state[BASIS][start : start + min(n * r, matrix.span.count)]
            self._ops.upload(np.ascontiguousarray(columns.reshape(r, n).T), matrix.q)

    def _all(self):
        return (matrix for bucket in self.matrices for matrix in bucket)


def matrix_of(span) -> tuple[int, int]:
    """Rows and columns as which a parameter is seen."""
    return span.count // span.shape[-1], span.shape[-1]


IDLE, FIRST, SECOND = range(3)


class _PowerSGDSum(Reduction):
    """Of one bucket. ``group``: those of all, in the order in which they start."""

    algorithm, transport = "PowerSGD", MESSAGES

    def __init__(self, ops, matrices: Sequence[MatrixFactors], whole: UncompressedPart, second: Reduction, group: list):
        self._ops, self._matrices, self._whole, self._second, self._group = ops, matrices, whole, second, group
        self.bytes_sent = sent(whole.sum, second)
        self.blocks = whole.sum.blocks
        self._phase = IDLE

    def announce(self) -> None:
        self._whole.sum.announce()

    def start(self) -> None:
        self._phase = FIRST
        self._whole.take()
        for m in self._matrices:
            self._ops.add(m.given, m.total, m.given)
            self._ops.orthonormalise(m.q)
            self._ops.product(m.given, m.q, m.p)
        self._whole.sum.start()

    def test(self) -> bool:
        """Never done before it, or the first of the group, was waited for."""
        if self._phase == FIRST:
            self._whole.sum.test()
        elif self._phase == SECOND and self._second.test():
            self._put()
        return self._phase == IDLE

    def wait(self, deadline_s: float) -> None:
        for each in self._group:
            each.turn(deadline_s)
        if self._phase == SECOND:
            self._second.wait(deadline_s)
            self._put()

    def turn(self, deadline_s: float) -> None:
        """From the first sum to the second, if it was started."""
        if self._phase != FIRST:
            return
        self._whole.sum.wait(deadline_s)
        for m in self._matrices:
            self._ops.orthonormalise(m.p)
            self._ops.product(m.given, m.p, m.q, a_transposed=True)
            self._keep(m)
        self._second.start()
        self._phase = SECOND

    def _keep(self, m: MatrixFactors) -> None:
        """What this rank does not send: M - P·Qᵀ."""
        self._ops.scale(m.q, -1.0)
        self._ops.product(m.p, m.q, m.given, b_transposed=True, accumulate=True)
        self._ops.scale(m.q, -1.0)

    def _put(self) -> None:
        self._phase = IDLE
        self._whole.put()
        for m in self._matrices:
            self._ops.product(m.p, m.q, m.total, b_transposed=True)
