"""Muon: hidden matrices are updated by their momentum made nearly orthogonal. The formula is in
:mod:`ringtrain.optim.optimizers`.

Source: Jordan et al. 2024 (as torch.optim.Muon); Liu et al. 2025, section 2.2 (the rate by the root of the longer side)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ringtrain.arrays import Array
from ringtrain.config.record import OptimizerConfig
from ringtrain.memory.spans import Parameter, Span
from ringtrain.ops.base import Ops
from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UpdateRange, trained_ranges
from ringtrain.optim.optimizers import AdamW, Optimizer

NEWTON_SCHULZ, MUON_EPS = (3.4445, -4.7750, 2.0315), 1e-7  # its author's


def hidden_matrices(parameters: Iterable[tuple[str, Parameter]]) -> set[str]:
    """Return the names of those that muon updates, of (full name, parameter) in layer order: trained weights with two
    axes or more that are neither tables nor of the last layer with a weight, the output layer."""
    weights = {name: parameter for name, parameter in parameters if parameter.role == "weight"}
    layers = [name.rpartition(".")[0] for name in weights]
    return {
        name
        for (name, parameter), layer in zip(weights.items(), layers, strict=True)
        if len(parameter.shape) > 1 and not parameter.table and layer != layers[-1] and not parameter.frozen
    }


class Muon(Optimizer):
    """Updates hidden matrices by their momentum made nearly orthogonal, and the other parameters as AdamW. A matrix has
    the last axis of a weight as its columns. Products add in the order of the operations, whatever the ranks.

    The host reads the numbers of each update and the norm of each matrix, so a device waits for it. Momentum is
    ``mean``, as AdamW's; ``square`` is of the others alone, but as long as the arena too.
    """

    slots, linear, layerwise, usual_momentum = AdamW.slots, False, True, 0.95

    def __init__(self, spans: Sequence[Span], hyper: OptimizerConfig):
        super().__init__(spans, hyper)
        names = hidden_matrices((span.name, span.parameter) for span in spans)
        trained = [span for span in spans if not span.parameter.frozen and span.parameter.role != "statistic"]
        others = [span for span in trained if span.name not in names]
        self._adamw = AdamW(others, replace(hyper, momentum=None, ema=None))
        self._shapes = {
            span.start: (span.count // span.shape[-1], span.shape[-1]) for span in spans if span.name in names
        }
        self._spare: list[Array] = []  # as long as the largest matrix, and twice as the largest square

    def apply(self, ops: Ops, weights, grads, slots, numbers, start, stop, first=0, squares=None, summed=False):
        self._check_whole(start, stop)
        host = ops.to_host(numbers)
        for each in trained_ranges(self.within(start, stop)):
            if shape := self._shapes.get(each.start):
                begin, end = each.start, each.start + math.prod(shape)
                parts = weights[begin:end], grads[begin:end], slots["mean"][begin - first : end - first]
                self._update(ops, [part.reshape(shape) for part in parts], each, host)
        self._adamw.apply(ops, weights, grads, slots, numbers, start, stop, first)
        self._finish(ops, weights, grads, slots, numbers, start, stop, first)

    def _update(self, ops: Ops, parts: Sequence[Array], each: UpdateRange, host: np.ndarray) -> None:
        """Update the weights of a matrix by gradient and momentum; one that is not applied runs the products alone."""
        (w, g, m), (rows, columns), lr = parts, parts[0].shape, float(host[RATE]) * each.lr
        if not self._spare:
            most = max(math.prod(shape) for shape in self._shapes.values())
            square = max(min(shape) for shape in self._shapes.values()) ** 2
            self._spare = [ops.empty(size) for size in (most, square, square)]
        spare = self._spare[0][: rows * columns].reshape((rows, columns))
        if not host[APPLIED]:
            ops.fill(g, 0)
            self._orthogonal(ops, g, spare)
            return
        ops.scale(g, (1 - self.momentum) * float(host[MULTIPLIER]))
        ops.scale(m, self.momentum)
        ops.add(m, g, m)
        ops.copy(m, spare)
        ops.scale(spare, self.momentum)
        ops.add(g, spare, g)
        x = self._orthogonal(ops, g, spare)
        original = self.hyper.adjust_lr == "original"
        ratio = math.sqrt(max(1, columns / rows)) if original else 0.2 * math.sqrt(max(rows, columns))
        ops.scale(w, 1 - lr * each.decay)
        ops.scale(x, -lr * ratio)
        ops.add(w, x, w)

    def _orthogonal(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return x with its singular values near 1, in the memory of x or of y."""
        side, wide = min(x.shape), x.shape[0] <= x.shape[1]
        gram, powers = (spare[: side * side].reshape((side, side)) for spare in self._spare[1:])
        a, b, c = NEWTON_SCHULZ
        ops.scale(x, 1 / max(math.sqrt(ops.square_sum(x)), MUON_EPS))
        for _ in range(self.hyper.ns_steps):
            ops.product(x, x, gram, a_transposed=not wide, b_transposed=wide)
            ops.product(gram, gram, powers)
            ops.scale(powers, c)
            ops.scale(gram, b)
            ops.add(powers, gram, powers)
            ops.copy(x, y)
            ops.scale(y, a)
            ops.product(*((powers, x) if wide else (x, powers)), y, accumulate=True)
            x, y = y, x
        return x
