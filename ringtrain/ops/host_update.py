"""The update of weights on a host: one range after another, by the rules on flat spans."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.ops.base import Ops
from ringtrain.ops.update import (
    APPLIED,
    DIVERGED,
    FACTOR,
    GOOD,
    GROW_AFTER,
    LARGEST_FACTOR,
    MULTIPLIER,
    RATE,
    SKIPPED,
    UPDATES,
    UpdateRange,
    UpdateRule,
    trained_ranges,
)


class HostUpdate(Ops):
    """The update of weights, of operations on NumPy arrays."""

    # ── the rules, on flat spans ──────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def sgd(self, w, g, v, lr: float, momentum: float, decay: float, nesterov: bool) -> None:
        """g' = g + decay·w; v = momentum·v + g'; w -= lr·(g' + momentum·v if nesterov else v)"""

    @abstractmethod
    def adamw(self, w, g, m, v, lr, beta1, beta2, eps, decay, step: int) -> None:
        """w -= lr·decay·w; m, v are the moving moments; w -= lr · m̂/(sqrt(v̂) + eps), bias-corrected by ``step`` >= 1.
        Source: Loshchilov & Hutter 2019."""

    @abstractmethod
    def adam(self, w, g, m, v, lr, beta1, beta2, eps, decay, step: int) -> None:
        """g' = g + decay·w; m, v are its moving moments; w -= lr · m̂/(sqrt(v̂) + eps), bias-corrected by ``step`` >= 1.
        Source: Kingma & Ba 2015, with L2 decay as in torch.optim.Adam."""

    @abstractmethod
    def rmsprop(self, w, g, s, v, lr, momentum, alpha, eps, decay) -> None:
        """g' = g + decay·w; s = alpha·s + (1 - alpha)·g'²; v = momentum·v + g'/(sqrt(s) + eps); w -= lr·v. Source:
        Tieleman & Hinton 2012, as torch.optim.RMSprop."""

    @abstractmethod
    def adam_direction(self, w, g, m, v, beta1, beta2, eps, decay, step: int) -> None:
        """m, v are the moving moments; g = m̂/(sqrt(v̂) + eps) + decay·w, bias-corrected by ``step`` >= 1. Source: You et
        al. 2020, algorithm 2."""

    @abstractmethod
    def approach(self, w, g, rate: float) -> None:
        """w += rate · (g - w): running statistics."""

    # ── an update ─────────────────────────────────────────────────────────────────────────────────────────────
    def gradient_squares(self, g, pieces, squares_1):
        squares_1[0] = sum(self.square_sum(g[start:stop]) for start, stop in pieces)

    def begin_update(self, numbers, squares_1=None, limit=None, loss_scale_3=None, dynamic=False, totals_3=None):
        squares = 0.0 if squares_1 is None else float(squares_1[0])
        finite, factor = math.isfinite(squares), 1.0
        if loss_scale_3 is not None:
            factor = float(loss_scale_3[FACTOR])
            _judge(loss_scale_3, finite, dynamic)
        multiplier = 1 / factor
        if limit is not None:
            norm = math.sqrt(squares) / factor
            multiplier *= limit / norm if norm > limit else 1.0
        if totals_3 is not None and not math.isfinite(totals_3[0]):
            numbers[DIVERGED] = 1
        numbers[MULTIPLIER] = multiplier
        numbers[APPLIED] = (finite or loss_scale_3 is None) and not numbers[DIVERGED]
        numbers[UPDATES] += numbers[APPLIED]

    def update_squares(self, rule, ranges, w, g, slots, first, numbers, squares_N2):
        if not numbers[APPLIED]:
            return
        for each in trained_ranges(ranges):
            own_w, own_g, state = _parts(each, w, g, slots, first)
            self._multiply(own_g, numbers)
            if rule.kind == "lamb":
                constants = rule.momentum, rule.beta2, rule.eps, each.decay
                self.adam_direction(own_w, own_g, state[0], state[1], *constants, int(numbers[UPDATES]))
            if each.norm is not None:
                squares_N2[each.norm] += self.square_sum(own_w), self.square_sum(own_g)

    def update(self, rule, ranges, w, g, slots, first, numbers, squares_N2=None):
        if not (numbers[APPLIED] and ranges):
            return
        for each in ranges:
            own_w, own_g, state = _parts(each, w, g, slots, first)
            if each.rate:
                self.approach(own_w, own_g, each.rate)
            elif not each.frozen and rule.kind != "statistics":
                if not rule.layerwise:
                    self._multiply(own_g, numbers)
                lr, ratio = float(numbers[RATE]) * each.lr, _trust_ratio(rule, each, squares_N2)
                self._rules[rule.kind](rule, own_w, own_g, state, lr, each.decay, int(numbers[UPDATES]), ratio)
        if rule.ema is not None:
            start, stop = ranges[0].start, ranges[-1].stop
            self._average(slots[-1][start - first : stop - first], w[start:stop], rule.ema, int(numbers[UPDATES]))

    def _multiply(self, g, numbers) -> None:
        if numbers[MULTIPLIER] != 1:
            self.scale(g, float(numbers[MULTIPLIER]))

    def _average(self, average, updated, decay: float, updates: int) -> None:
        """Move the average towards the updated weights; it begins at those of the first update."""
        if updates == 1:
            self.copy(updated, average)
        else:
            self.approach(average, updated, 1 - decay)

    @property
    def _rules(self) -> dict[str, Callable[..., None]]:
        return {
            "sgd": self._sgd,
            "nesterov": self._sgd,
            "adamw": self._adam,
            "adam": self._adam,
            "rmsprop": self._rmsprop,
            "lars": self._lars,
            "lamb": self._lamb,
        }

    def _sgd(self, rule, w, g, state, lr, decay, step, ratio):
        self.sgd(w, g, state[0], lr, rule.momentum, decay, rule.kind == "nesterov")

    def _adam(self, rule, w, g, state, lr, decay, step, ratio):
        update = self.adamw if rule.kind == "adamw" else self.adam
        update(w, g, state[0], state[1], lr, rule.momentum, rule.beta2, rule.eps, decay, step)

    def _rmsprop(self, rule, w, g, state, lr, decay, step, ratio):
        self.rmsprop(w, g, state[0], state[1], lr, rule.momentum, rule.beta2, rule.eps, decay)

    def _lars(self, rule, w, g, state, lr, decay, step, ratio):
        inside, outside = (ratio, lr) if rule.correction else (lr * ratio, 1.0)  # of the velocity
        self.scale(g, inside)
        self.sgd(w, g, state[0], outside, rule.momentum, inside * decay, False)

    def _lamb(self, rule, w, g, state, lr, decay, step, ratio):
        self.scale(g, -lr * ratio)
        self.add(w, g, w)


def _judge(loss_scale_3: np.ndarray, finite: bool, dynamic: bool) -> None:
    """Count an update, which is left out unless the gradient is finite, and adapt a dynamic factor."""
    if not finite:
        loss_scale_3[SKIPPED] += 1
        loss_scale_3[GOOD] = 0
        if dynamic:
            loss_scale_3[FACTOR] = max(loss_scale_3[FACTOR] / 2, 1.0)
        return
    loss_scale_3[GOOD] += 1
    if loss_scale_3[GOOD] == GROW_AFTER:
        loss_scale_3[GOOD] = 0
        if dynamic:
            loss_scale_3[FACTOR] = min(loss_scale_3[FACTOR] * 2, LARGEST_FACTOR)


def _parts(each: UpdateRange, w: Array, g: Array, slots: Sequence[Array], first: int):
    state = [slot[each.start - first : each.stop - first] for slot in slots]
    return w[each.start : each.stop], g[each.start : each.stop], state


def _trust_ratio(rule: UpdateRule, each: UpdateRange, squares_N2: np.ndarray | None) -> float:
    if each.norm is None or squares_N2 is None:
        return 1.0
    w_norm, g_norm = np.sqrt(squares_N2[each.norm])
    # Weights at 0 would stay there, and without a gradient the ratio is undefined: use 1, as is usual.
    if not (w_norm > 0 and g_norm > 0):
        return min(1.0, rule.trust_limit)
    ratio = w_norm / g_norm
    if rule.kind == "lars":
        ratio = rule.trust_coefficient * w_norm / (g_norm + each.decay * w_norm)
    return min(float(ratio), rule.trust_limit)
