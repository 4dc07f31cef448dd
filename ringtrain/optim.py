"""Optimizers, as functions on flat spans of the arena.

The parameters' own multipliers cut the arena into *runs*: neighbours with equal multipliers are updated in
one call, padding included (it is zero, and stays zero). Running statistics are runs too, which move towards
what the exchange summed.

Formulas, where lr and decay have been multiplied by those of the parameter:

    sgd       g' = g + decay·w      v = momentum·v + g'     w -= lr·v
    nesterov  the same g' and v                             w -= lr·(g' + momentum·v)
    adamw     w -= lr·decay·w       m = b1·m + (1-b1)·g     v = b2·v + (1-b2)·g²
              w -= lr · m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps)              t = step, from 1

Source: Sutskever et al. 2013 (momentum; as in PyTorch, lr is outside of v); Loshchilov & Hutter 2019 (AdamW)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ringtrain.errors import ConfigError, nearest

UNDECAYED = ("bias", "norm")  # roles that ``decay_bias_norm = false`` exempts


@dataclass(frozen=True, slots=True)
class Hyper:
    """momentum:        of sgd and nesterov; the first moment's (beta1) of adamw
    weight_decay:    before the parameters' multipliers
    decay_bias_norm: whether biases, scales and shifts decay too
    beta2, eps:      of adamw alone
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay_bias_norm: bool = True
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True, slots=True)
class Run:
    """Elements ``start:stop`` of the arena that are updated alike. lr multiplies the learning rate, decay is
    final, rate is that of running statistics, or 0 where the run is trained."""

    start: int
    stop: int
    lr: float
    decay: float
    rate: float


def runs(spans: Sequence, hyper: Hyper) -> tuple[Run, ...]:
    """Neighbouring spans with equal multipliers, merged."""
    merged: list[Run] = []
    for run in (_run(span, hyper) for span in spans):
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
    """slots:  names of the flat arrays that hold its state, as long as the arena and zero at first
    linear: whether an update is linear in gradient and state, so that the mean of updates is the update by the mean
    """

    slots: tuple[str, ...]
    linear: bool

    def __init__(self, spans: Sequence, hyper: Hyper):
        self.hyper = hyper
        self.runs = runs(spans, hyper)

    def apply(
        self, ops, weights, grads, slots: dict, lr: float, step: int, start: int, stop: int, first: int = 0
    ) -> None:
        """Update elements ``start:stop``. Arrays are flat, indexed as the arena; slots begin at its element ``first``.
        lr is that of this iteration, before multipliers; step counts updates from 1."""
        for run in self._within(start, stop):
            w, g = weights[run.start : run.stop], grads[run.start : run.stop]
            if run.rate:
                ops.approach(w, g, run.rate)
                continue
            state = [slots[name][run.start - first : run.stop - first] for name in self.slots]
            self._update(ops, w, g, state, lr * run.lr, run.decay, step)

    def _within(self, start: int, stop: int) -> Iterator[Run]:
        for run in self.runs:
            if run.start >= start and run.stop <= stop:
                yield run
            elif run.start < stop and run.stop > start:
                yield replace(run, start=max(run.start, start), stop=min(run.stop, stop))

    @abstractmethod
    def _update(self, ops, w, g, state: list, lr: float, decay: float, step: int) -> None: ...


class SGD(Optimizer):
    slots = ("momentum",)
    linear = True

    def _update(self, ops, w, g, state, lr, decay, step):
        ops.sgd(w, g, *state, lr, self.hyper.momentum, decay, False)


class Nesterov(Optimizer):
    slots = ("momentum",)
    linear = True

    def _update(self, ops, w, g, state, lr, decay, step):
        ops.sgd(w, g, *state, lr, self.hyper.momentum, decay, True)


class AdamW(Optimizer):
    slots = ("mean", "square")
    linear = False

    def _update(self, ops, w, g, state, lr, decay, step):
        ops.adamw(w, g, *state, lr, self.hyper.momentum, self.hyper.beta2, self.hyper.eps, decay, step)


OPTIMIZERS = {"sgd": SGD, "nesterov": Nesterov, "adamw": AdamW}


def make_optimizer(name: str, spans: Sequence, hyper: Hyper) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
    return OPTIMIZERS[name](spans, hyper)
