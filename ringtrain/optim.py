"""Optimizers, as functions on flat spans of the arena.

The parameters' own multipliers cut the arena into *runs*: neighbours with equal multipliers are updated in
one call, padding included (it is zero, and stays zero). Running statistics are runs too, which move towards
what the exchange summed.

Formulas, where lr and decay have been multiplied by those of the parameter:

    sgd       g' = g + decay·w      v = momentum·v + g'     w -= lr·v
    nesterov  the same g' and v                             w -= lr·(g' + momentum·v)
    adamw     w -= lr·decay·w       m = b1·m + (1-b1)·g     v = b2·v + (1-b2)·g²
              w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)              t = step, from 1
    lars      v = momentum·v + lr·q·(g + decay·w)             w -= v    q = trust·|w| / (|g| + decay·|w|)
    lamb      m, v as in adamw; r = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay·w
              w -= lr·q·r                                               q = |w| / |r|

|·| is the L2 norm of one whole parameter, and q its trust ratio, at most ``trust_limit``. It is 1 where either norm is
0, and in biases, scales and shifts: those are few numbers, whose norms say little.

Source: Sutskever et al. 2013 (momentum; as in PyTorch, lr is outside of v); Loshchilov & Hutter 2019 (AdamW); You,
Gitman & Ginsburg 2017, algorithm 1 (LARS; lr is inside of v); You et al. 2020, algorithm 2, phi the identity (LAMB)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from ringtrain.errors import ConfigError, nearest

UNDECAYED = ("bias", "norm")  # roles that ``decay_bias_norm = false`` exempts


@dataclass(frozen=True, slots=True)
class Hyper:
    """momentum:        of sgd, nesterov and lars; the first moment's (beta1) of adamw and lamb
    weight_decay:    before the parameters' multipliers
    decay_bias_norm: whether biases, scales and shifts decay too
    beta2:           of adamw and lamb
    eps:             likewise; None: 1e-8 of adamw, 1e-6 of lamb, as their authors have it
    trust:           the trust coefficient of lars
    trust_limit:     the largest trust ratio of lars and lamb
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay_bias_norm: bool = True
    beta2: float = 0.999
    eps: float | None = None
    trust: float = 1e-3
    trust_limit: float = math.inf


@dataclass(frozen=True, slots=True)
class Run:
    """Elements ``start:stop`` of the arena that are updated alike. lr multiplies the learning rate, decay is
    final, rate is that of running statistics, or 0 where the run is trained. norm numbers the one parameter
    whose norms scale its update; None where none do."""

    start: int
    stop: int
    lr: float
    decay: float
    rate: float
    norm: int | None = None


def runs(spans: Sequence, hyper: Hyper, layerwise: bool = False) -> tuple[Run, ...]:
    """Neighbouring spans with equal multipliers, merged. ``layerwise``: but for those that are scaled by norms of their
    own."""
    merged, norms = [], count()
    for span in spans:
        run = _run(span, hyper)
        if layerwise and span.parameter.role == "weight":
            run = replace(run, norm=next(norms))
        last = merged[-1] if merged else None
        if last and last.stop == run.start and replace(run, start=last.start, stop=last.stop) == last:
            merged[-1] = replace(last, stop=run.stop)
        else:
            merged.append(run)
    return tuple(merged)


def _run(span, hyper: Hyper) -> Run:
    p = span.parameter
    if p.role == "statistic":
        return Run(span.start, span.stop, 0.0, 0.0, p.rate)
    exempt = p.role in UNDECAYED and not hyper.decay_bias_norm
    return Run(span.start, span.stop, p.lr, 0.0 if exempt else hyper.weight_decay * p.decay, 0.0)


class Optimizer(ABC):
    """slots: names of the flat arrays that hold its state, as long as the arena and zero at first.
    layerwise: whether it needs norms of whole parameters, so that ``total`` matters
    """

    slots: tuple[str, ...]
    layerwise: bool

    def __init__(self, spans: Sequence, hyper: Hyper):
        self.hyper = hyper
        self.runs = runs(spans, hyper, self.layerwise)
        self._ends = {run.start: run.stop for run in self.runs}

    @abstractmethod
    def apply(
        self,
        ops,
        weights,
        grads,
        slots: dict,
        lr: float,
        step: int,
        start: int,
        stop: int,
        total: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        """Update elements ``start:stop``. All arrays are flat, indexed as the arena; gradients may be overwritten. lr
        is that of this iteration, before multipliers; step counts updates from 1.

        ``total`` is asked for where ``start:stop`` cuts parameters and the optimizer is layerwise: it sums a float64
        array, in place, over the ranks that update the other parts, and is called once by each of them.
        """

    def _within(self, start: int, stop: int) -> Iterator[Run]:
        for run in self.runs:
            if run.start >= start and run.stop <= stop:
                yield run
            elif run.start < stop and run.stop > start:
                yield replace(run, start=max(run.start, start), stop=min(run.stop, stop))

    def _views(self, run: Run, weights, grads, slots: dict):
        """(weights, gradients, state) of a run."""
        part = slice(run.start, run.stop)
        return weights[part], grads[part], [slots[name][part] for name in self.slots]


class Elementwise(Optimizer):
    """An element's update hangs on that element alone."""

    layerwise = False

    def apply(self, ops, weights, grads, slots, lr, step, start, stop, total=None):
        for run in self._within(start, stop):
            w, g, state = self._views(run, weights, grads, slots)
            if run.rate:
                ops.approach(w, g, run.rate)
            else:
                self._update(ops, w, g, state, lr * run.lr, run.decay, step)

    @abstractmethod
    def _update(self, ops, w, g, state: list, lr: float, decay: float, step: int) -> None: ...


class SGD(Elementwise):
    slots = ("momentum",)

    def _update(self, ops, w, g, state, lr, decay, step):
        ops.sgd(w, g, *state, lr, self.hyper.momentum, decay, False)


class Nesterov(Elementwise):
    slots = ("momentum",)

    def _update(self, ops, w, g, state, lr, decay, step):
        ops.sgd(w, g, *state, lr, self.hyper.momentum, decay, True)


class AdamW(Elementwise):
    slots = ("mean", "square")

    def _update(self, ops, w, g, state, lr, decay, step):
        eps = 1e-8 if self.hyper.eps is None else self.hyper.eps
        ops.adamw(w, g, *state, lr, self.hyper.momentum, self.hyper.beta2, eps, decay, step)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is updated of a trained run: views of weights, gradient and state."""

    run: Run
    w: object
    g: object
    state: list


class Layerwise(Optimizer):
    """A parameter's update is scaled by norms over the whole of it. They are sums of float64 in the order of its
    elements, so the update hangs neither on buckets nor on neighbours."""

    layerwise = True

    def apply(self, ops, weights, grads, slots, lr, step, start, stop, total=None):
        pieces = []
        for run in self._within(start, stop):
            w, g, state = self._views(run, weights, grads, slots)
            if run.rate:
                ops.approach(w, g, run.rate)
                continue
            self._check_whole(run, total)
            self._direct(ops, w, g, state, run.decay, step)
            pieces.append(Piece(run, w, g, state))
        norms = self._norms(ops, pieces, total)
        for piece in pieces:
            ratio = 1.0 if piece.run.norm is None else self._limited(*norms[piece.run.norm], piece.run.decay)
            self._move(ops, piece.w, piece.g, piece.state, lr * piece.run.lr * ratio, piece.run.decay)

    def _check_whole(self, part: Run, total) -> None:
        whole = self._ends.get(part.start) == part.stop
        if whole or part.norm is None or total is not None or part.start == part.stop:
            return
        raise ValueError(
            f"elements {part.start}:{part.stop} are a part of a parameter, whose update wants its norm: give whole "
            "parameters, or `total`, which sums over the ranks that have its other parts"
        )

    def _norms(self, ops, pieces: list[Piece], total) -> np.ndarray:
        """The L2 norms of weights and direction by ``Run.norm``: [norms, 2]; 0 where this rank has no part."""
        squares = np.zeros((sum(run.norm is not None for run in self.runs), 2))
        for piece in pieces:
            if piece.run.norm is not None:
                squares[piece.run.norm] = ops.square_sum(piece.w), ops.square_sum(piece.g)
        if total is not None:
            total(squares.reshape(-1))
        return np.sqrt(squares)

    def _limited(self, w_norm: float, g_norm: float, decay: float) -> float:
        # Weights that start at 0 could never leave it, and the ratio of no gradient says nothing: 1, as is usual.
        ratio = self._trust(w_norm, g_norm, decay) if w_norm > 0 and g_norm > 0 else 1.0
        return min(float(ratio), self.hyper.trust_limit)

    @abstractmethod
    def _direct(self, ops, w, g, state: list, decay: float, step: int) -> None:
        """Make the gradient, in place, what the ratio is taken of; advance moments."""

    @abstractmethod
    def _trust(self, w_norm: float, g_norm: float, decay: float) -> float: ...

    @abstractmethod
    def _move(self, ops, w, g, state: list, lr: float, decay: float) -> None:
        """Update the weights; lr has been multiplied by the ratio."""


class LARS(Layerwise):
    slots = ("velocity",)

    def _direct(self, ops, w, g, state, decay, step):
        """The gradient itself, without decay."""

    def _trust(self, w_norm, g_norm, decay):
        return self.hyper.trust * w_norm / (g_norm + decay * w_norm)

    def _move(self, ops, w, g, state, lr, decay):
        ops.scale(g, lr)
        ops.sgd(w, g, *state, 1.0, self.hyper.momentum, lr * decay, False)


class LAMB(Layerwise):
    slots = ("mean", "square")

    def _direct(self, ops, w, g, state, decay, step):
        eps = 1e-6 if self.hyper.eps is None else self.hyper.eps
        ops.adam_direction(w, g, *state, self.hyper.momentum, self.hyper.beta2, eps, decay, step)

    def _trust(self, w_norm, g_norm, decay):
        return w_norm / g_norm

    def _move(self, ops, w, g, state, lr, decay):
        ops.scale(g, -lr)
        ops.add(w, g, w)


OPTIMIZERS = {"sgd": SGD, "nesterov": Nesterov, "adamw": AdamW, "lars": LARS, "lamb": LAMB}


def make_optimizer(name: str, spans: Sequence, hyper: Hyper) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
    return OPTIMIZERS[name](spans, hyper)
