"""Optimizers, as functions on flat spans of the arena.

The parameters' own multipliers cut the arena into *runs*: neighbours with equal multipliers are updated in
one call, padding included (it is zero, and stays zero). Running statistics are runs too, which move towards
what the exchange summed.

With ``ema`` each update ends with ema = ema·d + (1-d)·w, of every element, running statistics included.

Formulas, where lr and decay have been multiplied by those of the parameter:

    sgd       g' = g + decay·w      v = momentum·v + g'     w -= lr·v
    nesterov  the same g' and v                             w -= lr·(g' + momentum·v)
    adamw     w -= lr·decay·w       m = b1·m + (1-b1)·g     v = b2·v + (1-b2)·g²
              w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)              t = step, from 1
    adam      g' = g + decay·w      m, v as in adamw, of g'   w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)
    rmsprop   g' = g + decay·w      s = b2·s + (1-b2)·g'²   v = momentum·v + g' / (sqrt(s) + eps)   w -= lr·v
    lars      v = momentum·v + lr·q·(g + decay·w)             w -= v    q = trust·|w| / (|g| + decay·|w|)
    lamb      m, v as in adamw; r = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay·w
              w -= lr·q·r                                               q = |w| / |r|

|·| is the L2 norm of one whole parameter, and q its trust ratio, at most ``trust_limit``. It is 1 where either norm is
0, and in biases, scales and shifts: those are few numbers, whose norms say little.

In lars v has lr inside: after a change from lr to lr' it still moves the weights by what was gathered at lr. *Momentum
correction* multiplies v by lr'/lr then. That is what v = momentum·v + q·(g + decay·w), w -= lr·v computes, whatever lr
does, and how it is done here. The others have no lr in their state, and nothing to correct.

Source: Sutskever et al. 2013 (momentum; as in PyTorch, lr is outside of v); Loshchilov & Hutter 2019 (AdamW);
Kingma & Ba 2015 (Adam; L2 decay as in PyTorch); Tieleman & Hinton 2012 (RMSprop, as in PyTorch, where b2 is alpha);
You, Gitman & Ginsburg 2017, algorithm 1 (LARS; lr is inside of v); You et al. 2020, algorithm 2, phi the identity
(LAMB); Goyal et al. 2017, section 3 (momentum correction); ema as torch.optim.swa_utils.AveragedModel with
use_buffers=True
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import ConfigError, nearest
from ringtrain.nn.base import Span
from ringtrain.ops.base import Ops
from ringtrain.optim import texts

Slots = Mapping[str, Array]  # flat arrays of an optimizer's state, by name
EMA = "ema"  # the slot of the average of the weights
UNDECAYED = ("bias", "norm")  # roles that ``decay_bias_norm = false`` exempts


@dataclass(frozen=True, slots=True)
class Hyper:
    """The hyperparameters.

    momentum:        of sgd, nesterov, lars and rmsprop; the first moment's (beta1) of adam, adamw and lamb
    weight_decay:    before the parameters' multipliers
    decay_bias_norm: whether biases, scales and shifts decay too
    beta2:           of adam, adamw, rmsprop (alpha) and lamb
    eps:             likewise; None: 1e-6 for lamb, its authors' value, else 1e-8
    trust_coefficient: of lars
    trust_limit:     the largest trust ratio of lars and lamb
    correction:      momentum correction of lars
    ema:             decay of the average of the weights; None: no average
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay_bias_norm: bool = True
    beta2: float = 0.999
    eps: float | None = None
    trust_coefficient: float = 1e-3
    trust_limit: float = math.inf
    correction: bool = False
    ema: float | None = None


@dataclass(frozen=True, slots=True)
class UpdateRange:
    """Elements ``start:stop`` of the arena with one kind of update. lr multiplies the learning rate, decay is
    final, rate is that of running statistics, or 0 if the range is trained. norm numbers the one parameter
    whose norms scale its update; None if none does.
    """

    start: int
    stop: int
    lr: float
    decay: float
    rate: float
    norm: int | None = None


def update_ranges(spans: Sequence[Span], hyper: Hyper, layerwise: bool = False) -> tuple[UpdateRange, ...]:
    """Merge neighbouring spans with equal multipliers, and leave frozen ones out. ``layerwise``: keep spans apart whose
    own norms scale their updates."""
    merged: list[UpdateRange] = []
    norms = count()
    for span in spans:
        if span.parameter.frozen:
            continue
        run = _run(span, hyper)
        if layerwise and span.parameter.role == "weight":
            run = replace(run, norm=next(norms))
        last = merged[-1] if merged else None
        if last and last.stop == run.start and replace(run, start=last.start, stop=last.stop) == last:
            merged[-1] = replace(last, stop=run.stop)
        else:
            merged.append(run)
    return tuple(merged)


def _run(span: Span, hyper: Hyper) -> UpdateRange:
    p = span.parameter
    if p.role == "statistic":
        return UpdateRange(span.start, span.stop, 0.0, 0.0, p.rate)
    exempt = p.role in UNDECAYED and not hyper.decay_bias_norm
    return UpdateRange(span.start, span.stop, p.lr, 0.0 if exempt else hyper.weight_decay * p.decay, 0.0)


def eps_of(hyper: Hyper, usual: float) -> float:
    return usual if hyper.eps is None else hyper.eps


class Optimizer(ABC):
    """An update rule.

    slots:     names of the flat arrays that hold its state, as long as the arena and zero at first; of an object with
               ``hyper.ema`` also :data:`EMA`, the average of the weights
    linear:    whether an update is linear in gradient and state, so that the mean of updates is the update by the mean
    layerwise: whether it needs norms of whole parameters: see :class:`Layerwise`
    """

    slots: tuple[str, ...]
    linear: bool
    layerwise: bool

    def __init__(self, spans: Sequence[Span], hyper: Hyper):
        self.hyper, self._rule_slots = hyper, type(self).slots
        self.slots = self._rule_slots if hyper.ema is None else (*self._rule_slots, EMA)
        self.runs = update_ranges(spans, hyper, self.layerwise)

    @abstractmethod
    def apply(
        self, ops: Ops, weights, grads, slots: Slots, lr: float, step: int, start: int, stop: int, first: int = 0
    ) -> None:
        """Update elements ``start:stop``. Arrays are flat, indexed as the arena; slots begin at its element ``first``.
        Gradients may be overwritten. lr is that of this iteration, before multipliers; step counts updates from 1."""

    def _within(self, start: int, stop: int) -> Iterator[UpdateRange]:
        for run in self.runs:
            if run.start >= start and run.stop <= stop:
                yield run
            elif run.start < stop and run.stop > start:
                yield replace(run, start=max(run.start, start), stop=min(run.stop, stop))

    def _state(self, run: UpdateRange, slots: Slots, first: int) -> list[Array]:
        return [slots[name][run.start - first : run.stop - first] for name in self._rule_slots]

    def _average(self, ops: Ops, weights, slots: Slots, step: int, start: int, stop: int, first: int) -> None:
        """Move the average of the weights, running statistics included, towards the updated ones; it begins at those of
        the first update."""
        if self.hyper.ema is None or start == stop:
            return
        average, updated = slots[EMA][start - first : stop - first], weights[start:stop]
        if step == 1:
            ops.copy(updated, average)
        else:
            ops.approach(average, updated, 1 - self.hyper.ema)


class ElementwiseOptimizer(Optimizer):
    """An optimizer whose update of an element depends on that element alone."""

    layerwise = False

    def apply(self, ops: Ops, weights, grads, slots, lr, step, start, stop, first=0):
        for run in self._within(start, stop):
            w, g = weights[run.start : run.stop], grads[run.start : run.stop]
            if run.rate:
                ops.approach(w, g, run.rate)
            else:
                self._update(ops, w, g, self._state(run, slots, first), lr * run.lr, run.decay, step)
        self._average(ops, weights, slots, step, start, stop, first)

    @abstractmethod
    def _update(self, ops: Ops, w: Array, g: Array, state: list[Array], lr: float, decay: float, step: int) -> None: ...


class SGD(ElementwiseOptimizer):
    slots = ("momentum",)
    linear = True

    def _update(self, ops: Ops, w, g, state, lr, decay, step):
        (v,) = state
        ops.sgd(w, g, v, lr, self.hyper.momentum, decay, False)


class Nesterov(ElementwiseOptimizer):
    slots = ("momentum",)
    linear = True

    def _update(self, ops: Ops, w, g, state, lr, decay, step):
        (v,) = state
        ops.sgd(w, g, v, lr, self.hyper.momentum, decay, True)


class AdamW(ElementwiseOptimizer):
    slots = ("mean", "square")
    linear = False

    def _update(self, ops: Ops, w, g, state, lr, decay, step):
        m, v = state
        ops.adamw(w, g, m, v, lr, self.hyper.momentum, self.hyper.beta2, eps_of(self.hyper, 1e-8), decay, step)


class Adam(ElementwiseOptimizer):
    slots = ("mean", "square")
    linear = False

    def _update(self, ops: Ops, w, g, state, lr, decay, step):
        m, v = state
        ops.adam(w, g, m, v, lr, self.hyper.momentum, self.hyper.beta2, eps_of(self.hyper, 1e-8), decay, step)


class RMSprop(ElementwiseOptimizer):
    slots = ("square", "momentum")
    linear = False

    def _update(self, ops: Ops, w, g, state, lr, decay, step):
        s, v = state
        ops.rmsprop(w, g, s, v, lr, self.hyper.momentum, self.hyper.beta2, eps_of(self.hyper, 1e-8), decay)


class Layerwise(Optimizer):
    """An optimizer whose update of a parameter is scaled by norms over the whole of it. The norms are sums of float64
    over its elements alone, so the update depends neither on buckets nor on neighbours.

    A rank with whole parameters calls :meth:`apply`. If ranks have parts of a parameter, each calls :meth:`prepare` for
    its parts, the squares are summed over ranks, and each calls :meth:`move`.
    """

    linear = False
    layerwise = True

    def __init__(self, spans: Sequence[Span], hyper: Hyper):
        super().__init__(spans, hyper)
        self._whole = self.squares()

    def apply(self, ops: Ops, weights, grads, slots, lr, step, start, stop, first=0):
        self._check_whole(start, stop)
        squares = self._whole
        squares.fill(0.0)
        self.prepare(ops, weights, grads, slots, step, start, stop, squares, first)
        self.move(ops, weights, grads, slots, lr, step, start, stop, squares, first)

    def squares(self) -> np.ndarray:
        """Return zeros, float64 [parameters with norms, 2], for the sums of squares of weights and direction."""
        return np.zeros((sum(run.norm is not None for run in self.runs), 2))

    def prepare(
        self, ops: Ops, weights, grads, slots: Slots, step: int, start: int, stop: int, squares, first: int = 0
    ) -> None:
        """Turn the gradient of elements ``start:stop``, in place, into a direction, and add the squares of both."""
        for run in self._within(start, stop):
            if run.rate:
                continue
            w, g = weights[run.start : run.stop], grads[run.start : run.stop]
            self._direct(ops, w, g, self._state(run, slots, first), run.decay, step)
            if run.norm is not None:
                squares[run.norm] += ops.square_sum(w), ops.square_sum(g)

    def move(
        self, ops: Ops, weights, grads, slots: Slots, lr: float, step: int, start: int, stop: int, squares,
        first: int = 0,
    ) -> None:  # fmt: skip
        """Update elements ``start:stop`` in their direction, by the squares of whole parameters."""
        for run in self._within(start, stop):
            w, g = weights[run.start : run.stop], grads[run.start : run.stop]
            if run.rate:
                ops.approach(w, g, run.rate)
                continue
            ratio = 1.0 if run.norm is None else self._limited(np.sqrt(squares[run.norm]), run.decay)
            self._move(ops, w, g, self._state(run, slots, first), lr * run.lr, ratio, run.decay)
        self._average(ops, weights, slots, step, start, stop, first)

    def _check_whole(self, start: int, stop: int) -> None:
        for run in self.runs if start < stop else ():
            if run.norm is not None and any(run.start < edge < run.stop for edge in (start, stop)):
                raise ValueError(
                    f"elements {start}:{stop} cut the parameter at {run.start}:{run.stop}, whose update wants its "
                    "norm: take whole parameters, or `prepare` parts, sum their squares over ranks, and `move` them"
                )

    def _limited(self, norms: np.ndarray, decay: float) -> float:
        w_norm, g_norm = norms
        # Weights at 0 would stay there, and without a gradient the ratio is undefined: use 1, as is usual.
        ratio = self._trust(w_norm, g_norm, decay) if w_norm > 0 and g_norm > 0 else 1.0
        return min(float(ratio), self.hyper.trust_limit)

    @abstractmethod
    def _direct(self, ops: Ops, w: Array, g: Array, state: list[Array], decay: float, step: int) -> None:
        """Turn the gradient, in place, into the vector of the trust ratio; advance moments."""

    @abstractmethod
    def _trust(self, w_norm: float, g_norm: float, decay: float) -> float: ...

    @abstractmethod
    def _move(self, ops: Ops, w: Array, g: Array, state: list[Array], lr: float, ratio: float, decay: float) -> None:
        """Update the weights; lr has been multiplied by the parameter's own."""


class LARS(Layerwise):
    slots = ("velocity",)

    def _direct(self, ops: Ops, w, g, state, decay, step):
        """Leave the gradient as it is, without decay."""

    def _trust(self, w_norm, g_norm, decay):
        return self.hyper.trust_coefficient * w_norm / (g_norm + decay * w_norm)

    def _move(self, ops: Ops, w, g, state, lr, ratio, decay):
        inside, outside = (ratio, lr) if self.hyper.correction else (lr * ratio, 1.0)  # of v
        ops.scale(g, inside)
        (v,) = state
        ops.sgd(w, g, v, outside, self.hyper.momentum, inside * decay, False)


class LAMB(Layerwise):
    slots = ("mean", "square")

    def _direct(self, ops: Ops, w, g, state, decay, step):
        m, v = state
        eps = eps_of(self.hyper, 1e-6)
        ops.adam_direction(w, g, m, v, self.hyper.momentum, self.hyper.beta2, eps, decay, step)

    def _trust(self, w_norm, g_norm, decay):
        return w_norm / g_norm

    def _move(self, ops: Ops, w, g, state, lr, ratio, decay):
        ops.scale(g, -lr * ratio)
        ops.add(w, g, w)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "nesterov": Nesterov,
    "adamw": AdamW,
    "adam": Adam,
    "rmsprop": RMSprop,
    "lars": LARS,
    "lamb": LAMB,
}


def make_optimizer(name: str, spans: Sequence[Span], hyper: Hyper) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ConfigError(texts.UNKNOWN_OPTIMIZER(name=name, hint=nearest(name, OPTIMIZERS)))
    return OPTIMIZERS[name](spans, hyper)
