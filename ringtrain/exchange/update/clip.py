"""Clipping by the global norm: one factor for all gradients, from all of them."""

import math
from collections.abc import Callable, Sequence

from ringtrain.arrays import Array
from ringtrain.exchange.update.ranges import Piece, join
from ringtrain.nn.base import Span
from ringtrain.ops.base import Ops


def trained_runs(spans: Sequence[Span]) -> list[Piece]:
    """Return the pieces of the arena that are trained: running statistics have no gradient to clip, and that of frozen
    parameters does not count."""
    trained = (span for span in spans if span.parameter.role != "statistic" and not span.parameter.frozen)
    return join([(span.start, span.stop) for span in trained])


def clip(ops: Ops, grads: Array, runs: Sequence[Piece], limit: float, total: Callable[[float], float] = float) -> float:
    """Scale the gradients in ``runs`` by limit/norm where their norm is above ``limit``. Returns the norm before
    that. ``total``: from the sum of squares of this rank's runs to that of all ranks.

    Source: Pascanu, Mikolov & Bengio, On the difficulty of training recurrent neural networks, ICML 2013.
    """
    norm = math.sqrt(total(sum(ops.square_sum(grads[start:stop]) for start, stop in runs)))
    if norm > limit:
        for start, stop in runs:
            ops.scale(grads[start:stop], limit / norm)
    return norm


def rehearse_clip(ops: Ops, grads: Array) -> None:
    """Run every operation of :func:`clip` once, on no elements."""
    ops.square_sum(grads[:0])
    ops.scale(grads[:0], 1.0)
