"""Clipping by the global norm: one factor for all gradients, from all of them."""

import math
from collections.abc import Callable, Sequence

from ringtrain.nn.base import Span


def trained_runs(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """(start, stop) of neighbouring parameters that are trained: running statistics have no gradient to
    clip."""
    runs: list[tuple[int, int]] = []
    for span in spans:
        if span.parameter.role == "statistic":
            continue
        if runs and runs[-1][1] == span.start:
            runs[-1] = (runs[-1][0], span.stop)
        else:
            runs.append((span.start, span.stop))
    return runs


def _alone(own: float) -> float:
    return own


def clip(ops, grads, runs: Sequence[tuple[int, int]], limit: float, total: Callable[[float], float] = _alone) -> float:
    """Scale the gradients in ``runs`` by limit/norm where their norm is above ``limit``; the norm before
    that. ``total``: from the sum of squares in this rank's runs to that of all ranks, where each has its own.

    Source: Pascanu, Mikolov & Bengio, On the difficulty of training recurrent neural networks, ICML 2013.
    """
    norm = math.sqrt(total(sum(ops.square_sum(grads[start:stop]) for start, stop in runs)))
    if norm > limit:
        for start, stop in runs:
            ops.scale(grads[start:stop], limit / norm)
    return norm


def rehearse_clip(ops, grads) -> None:
    """Run every operation of it once, on no elements."""
    ops.square_sum(grads[:0])
    ops.scale(grads[:0], 1.0)
