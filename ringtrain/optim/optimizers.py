"""Optimizers, as rules for ranges of the arena; :meth:`ringtrain.ops.base.Ops.update` follows them.

The parameters' own multipliers cut the arena into *ranges*: neighbours with equal multipliers are updated alike,
padding included (it is zero, and stays zero). Running statistics are ranges too, which move towards what the exchange
summed.

With ``ema`` each update ends with ema = ema·d + (1-d)·w, of every element, running statistics included.

Formulas, where lr and decay have been multiplied by the parameter's:

    sgd       g' = g + decay·w      v = momentum·v + g'     w -= lr·v
    nesterov  the same g' and v                             w -= lr·(g' + momentum·v)
    adamw     w -= lr·decay·w       m = b1·m + (1-b1)·g     v = b2·v + (1-b2)·g²
              w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)              t = step, from 1
    adam      g' = g + decay·w      m, v as in adamw, of g'   w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)
    rmsprop   g' = g + decay·w      s = b2·s + (1-b2)·g'²   v = momentum·v + g' / (sqrt(s) + eps)   w -= lr·v
    lars      v = momentum·v + lr·q·(g + decay·w)             w -= v    q = trust·|w| / (|g| + decay·|w|)
    lamb      m, v as in adamw; r = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay·w
              w -= lr·q·r                                               q = |w| / |r|
    muon      m = momentum·m + (1-momentum)·g      x = momentum·m + (1-momentum)·g      x /= max(|x|, 1e-7)
              ns_steps times: x = 3.4445·x - 4.7750·(x·xᵀ)·x + 2.0315·(x·xᵀ)²·x, which brings singular values near 1
              w -= lr·decay·w       w -= lr·f·x        f = 0.2·sqrt(max(in, out)), or sqrt(max(1, out/in))
              of hidden matrices; the rest as in adamw, b1 0.9

|·| is the L2 norm of one whole parameter, and q its trust ratio. It is 1 where either norm is 0, and in biases, scales
and shifts: those are few numbers, whose norms say little.

Source: Sutskever et al. 2013 (momentum; as in PyTorch, lr is outside of v); Loshchilov & Hutter 2019 (AdamW); Kingma &
Ba 2015 (Adam; L2 decay as in PyTorch); Tieleman & Hinton 2012 (RMSprop, as in PyTorch, where b2 is alpha); You, Gitman
& Ginsburg 2017, algorithm 1 (LARS; lr is inside of v); You et al. 2020, algorithm 2, phi the identity (LAMB); Jordan et
al. 2024 (Muon, as torch.optim.Muon; "original" f); Liu et al. 2025, section 2.2 (the other f); ema as
torch.optim.swa_utils.AveragedModel with use_buffers=True
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import ClassVar

from ringtrain.arrays import Array
from ringtrain.config.record import OptimizerConfig
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.ops.update import APPLIED, EMA, MULTIPLIER, RATE, UPDATES, UpdateRange, UpdateRule, trained_ranges

Slots = Mapping[str, Array]  # flat arrays of an optimizer's state, by name
UNDECAYED = ("bias", "norm")  # roles that ``decay_bias_norm = false`` exempts
TRUST_COEFFICIENT = 1e-3  # of lars, unless another is given


def update_ranges(spans: Sequence[Span], hyper: OptimizerConfig, layerwise: bool = False) -> tuple[UpdateRange, ...]:
    """Merge neighbouring spans with equal multipliers. ``layerwise``: keep spans apart whose own norms scale their
    updates."""
    merged: list[UpdateRange] = []
    norms = count()
    for span in spans:
        each = _range(span, hyper)
        if layerwise and span.parameter.role == "weight" and not each.frozen:
            each = replace(each, norm=next(norms))
        last = merged[-1] if merged else None
        if last and last.stop == each.start and replace(each, start=last.start, stop=last.stop) == last:
            merged[-1] = replace(last, stop=each.stop)
        else:
            merged.append(each)
    return tuple(merged)


def _range(span: Span, hyper: OptimizerConfig) -> UpdateRange:
    p = span.parameter
    if p.frozen:
        return UpdateRange(span.start, span.stop, 0.0, 0.0, 0.0, frozen=True)
    if p.role == "statistic":
        return UpdateRange(span.start, span.stop, 0.0, 0.0, p.rate)
    exempt = p.role in UNDECAYED and not hyper.decay_bias_norm
    return UpdateRange(span.start, span.stop, p.lr, 0.0 if exempt else hyper.weight_decay * p.decay, 0.0)


class Optimizer(ABC):
    """An update rule for the spans of an arena.

    slots:     names of the flat arrays that hold its state, as long as the arena and zero at first; of an object with
               ``hyper.ema`` also :data:`ringtrain.ops.update.EMA`, the average of the weights
    linear:    whether an update is linear in gradient and state, so that the mean of updates is the update by the mean
    layerwise: whether it needs whole parameters, or their norms: see :class:`RuleOptimizer`
    recorded:  whether a device may record an update, and replay it with other numbers
    """

    slots: tuple[str, ...]
    linear: bool
    layerwise = False
    recorded = False
    usual_momentum = 0.9

    def __init__(self, spans: Sequence[Span], hyper: OptimizerConfig):
        self.momentum = self.usual_momentum if hyper.momentum is None else hyper.momentum
        self.hyper = replace(hyper, momentum=self.momentum)
        self.slots = type(self).slots if hyper.ema is None else (*type(self).slots, EMA)
        self.ranges = update_ranges(spans, hyper, self.layerwise)
        self._within: dict[tuple[int, int], tuple[UpdateRange, ...]] = {}

    def make_slots(self, zeros: Callable[[], Array], pieces: Sequence[tuple[int, int]]) -> Slots:
        """Return the arrays of its state for the elements of these pieces of the arena, one piece after the other.
        ``zeros()``: an array of so many elements."""
        return {name: zeros() for name in self.slots}

    def agree_on_slots(self, gather: Callable[[list[str]], list[list[str]]]) -> None:  # noqa: B027
        """Have the same slots on all ranks, if they come with updates. ``gather``: maps the names on this rank to those
        on each; collective."""

    def _finish(self, ops: Ops, weights, grads, slots: Slots, numbers, start: int, stop: int, first: int) -> None:
        """Update what is not trained: running statistics, and the average of the weights."""
        rule, state = UpdateRule("statistics", ema=self.hyper.ema), [slots[name] for name in self.slots]
        ops.update(rule, self.within(start, stop), weights, grads, state, first, numbers)

    @abstractmethod
    def apply(
        self,
        ops: Ops,
        weights: Array,
        grads: Array,
        slots: Slots,
        numbers: Array,
        start: int,
        stop: int,
        first: int = 0,
        squares: Array | None = None,
        summed: bool = False,
    ) -> None:
        """Update elements ``start:stop``. Arrays are flat, indexed as the arena; slots begin at its element ``first``.
        Gradients may be overwritten. ``numbers``: of this update (:mod:`ringtrain.ops.update`). ``squares``: memory for
        the sums of squares of a layerwise rule, by :func:`make_squares`; ``summed``: they are in it, else the elements
        are whole parameters.
        """

    def within(self, start: int, stop: int) -> tuple[UpdateRange, ...]:
        """Return the ranges of elements ``start:stop``: the same object in each call."""
        if (start, stop) not in self._within:
            cut = (
                replace(each, start=max(each.start, start), stop=min(each.stop, stop))
                for each in self.ranges
                if each.start < stop and each.stop > start
            )
            self._within[start, stop] = tuple(cut) if start < stop else ()
        return self._within[start, stop]

    def _check_whole(self, start: int, stop: int) -> None:
        """Raise ValueError if elements ``start:stop`` have a part of a parameter that is updated as a whole."""
        for each in self.ranges if start < stop else ():
            if each.norm is not None and any(each.start < edge < each.stop for edge in (start, stop)):
                raise ValueError(
                    f"elements {start}:{stop} cut the parameter at {each.start}:{each.stop}, whose update wants its "
                    "norm: take whole parameters, or add the squares of all ranks' parts"
                )


class RuleOptimizer(Optimizer):
    """An optimizer whose formula the operations know.

    The update of a layerwise one is scaled by norms over whole parameters. The norms are sums of float64 over the
    elements of a parameter alone, so the update depends neither on buckets nor on neighbours. If ranks have parts of a
    parameter, each calls :meth:`add_squares` for its parts, the squares are summed over ranks, and each calls
    :meth:`apply` with them.
    """

    kind: ClassVar[str]  # one of ringtrain.ops.update.KINDS
    recorded = True
    usual_eps = 1e-8

    def __init__(self, spans: Sequence[Span], hyper: OptimizerConfig):
        super().__init__(spans, hyper)
        eps = self.usual_eps if hyper.eps is None else hyper.eps
        trust = hyper.trust_coefficient or TRUST_COEFFICIENT
        self.rule = UpdateRule(self.kind, self.momentum, hyper.beta2, eps, trust, hyper.ema)

    def apply(self, ops: Ops, weights, grads, slots, numbers, start, stop, first=0, squares=None, summed=False):
        if squares is not None and not summed:
            self._check_whole(start, stop)
            ops.fill(squares, 0)
            self.add_squares(ops, weights, grads, slots, numbers, start, stop, squares, first)
        state = [slots[name] for name in self.slots]
        ops.update(self.rule, self.within(start, stop), weights, grads, state, first, numbers, squares)

    def add_squares(
        self,
        ops: Ops,
        weights: Array,
        grads: Array,
        slots: Slots,
        numbers: Array,
        start: int,
        stop: int,
        squares: Array,
        first: int = 0,
    ) -> None:
        """Turn the gradients of elements ``start:stop``, in place, into directions, and add the squares of weights and
        directions to ``squares``, float64 [norms, 2]."""
        state = [slots[name] for name in self.slots]
        ops.update_squares(self.rule, self.within(start, stop), weights, grads, state, first, numbers, squares)


class OwnOptimizer(Optimizer):
    """An optimizer with a formula of its own for each element, in operations on flat arrays: for plug-ins. The host
    reads the numbers of each update, so a device waits for it."""

    def apply(self, ops: Ops, weights, grads, slots, numbers, start, stop, first=0, squares=None, summed=False):
        ranges, host = self.within(start, stop), ops.to_host(numbers)
        if not (ranges and host[APPLIED]):
            return
        for each in trained_ranges(ranges):
            w, g = weights[each.start : each.stop], grads[each.start : each.stop]
            state = [slots[name][each.start - first : each.stop - first] for name in type(self).slots]
            if host[MULTIPLIER] != 1:
                ops.scale(g, float(host[MULTIPLIER]))
            self.update(ops, w, g, state, float(host[RATE]) * each.lr, each.decay, int(host[UPDATES]))
        self._finish(ops, weights, grads, slots, numbers, start, stop, first)

    @abstractmethod
    def update(self, ops: Ops, w: Array, g: Array, state: list[Array], lr: float, decay: float, step: int) -> None:
        """Update weights ``w`` by their gradient. ``state``: of each slot; lr and decay are final; step counts from
        1."""


class SGD(RuleOptimizer):
    kind, slots, linear = "sgd", ("momentum",), True


class Nesterov(RuleOptimizer):
    kind, slots, linear = "nesterov", ("momentum",), True


class AdamW(RuleOptimizer):
    kind, slots, linear = "adamw", ("mean", "square"), False


class Adam(RuleOptimizer):
    kind, slots, linear = "adam", ("mean", "square"), False


class RMSprop(RuleOptimizer):
    kind, slots, linear = "rmsprop", ("square", "momentum"), False


class LARS(RuleOptimizer):
    kind, slots, linear, layerwise = "lars", ("velocity",), False, True


class LAMB(RuleOptimizer):
    kind, slots, linear, layerwise = "lamb", ("mean", "square"), False, True
    usual_eps = 1e-6  # its authors' value


RULES = (SGD, Nesterov, AdamW, Adam, RMSprop, LARS, LAMB)


def make_squares(optimizer: Optimizer, ops: Ops) -> Array | None:
    """Return memory for the sums of squares of weights and directions of each parameter whose norms scale its update,
    float64 [parameters, 2]; None for an optimizer that needs none."""
    count = sum(each.norm is not None for each in optimizer.ranges)
    return ops.zeros((count, 2), "float64") if optimizer.layerwise else None
