"""The common base of operations on host memory: they are done when they return, so there is nothing to wait for."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from ringtrain.arrays import Array
from ringtrain.ops.base import Mark, Ops
from ringtrain.ops.normalised import Normalised
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


class HostMark(Mark):
    """A mark on a host: everything before it is done. ``time``: in seconds, when it was made."""

    def __init__(self, time: float | None = None):
        self._time = time

    def done(self):
        return True

    def wait(self):
        """Return at once."""

    def seconds_since(self, earlier):
        return self._time - earlier._time


DONE = HostMark()


def host_number(factor):
    """Return a factor as a number; it may be an array of one, or None for 1."""
    return 1.0 if factor is None else float(factor[0]) if isinstance(factor, np.ndarray) else factor


class HostOps(Ops):
    """Operations on NumPy arrays."""

    records = False

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def address(self, x):
        return x.ctypes.data

    def pinned(self, shape, dtype):
        return np.zeros(shape, dtype)

    def upload(self, host, out):
        np.copyto(out, host, casting="unsafe")

    def to_host(self, x):
        return x.copy()

    def download(self, x, host):
        np.copyto(host, x)

    def fetch(self, x, host):
        np.copyto(host, x)

    def put(self, *values):
        for x, value in values:
            x[0] = value

    def typed(self, x, dtype):
        return x.reshape(-1).view(dtype)

    def memory(self):
        return None

    def fill(self, x, value):
        x.fill(value)

    def copy(self, x, y):
        np.copyto(y, x.reshape(y.shape))

    def add_all(self, sources, targets):
        total = sum((source.reshape(sources[0].shape) for source in sources[1:]), sources[0])
        for target in targets:
            np.copyto(target, total.reshape(target.shape))

    def concat(self, xs, y):
        np.concatenate(xs, axis=-1, out=y)

    def concat_back(self, dy, dxs):
        start = 0
        for dx in dxs:
            np.copyto(dx, dy[..., start : start + dx.shape[-1]])
            start += dx.shape[-1]

    # ── mixed batches ─────────────────────────────────────────────────────────────────────────────────────────
    def paste_boxes(self, x_NHWC, source_NHWC, boxes_N4):
        for example, (top, left, height, width) in enumerate(boxes_N4.tolist()):
            box = np.s_[example, top : top + height, left : left + width]
            x_NHWC[box] = 0 if source_NHWC is None else source_NHWC[box]

    def mix_totals(self, a_3, b_3, totals_3, share):
        totals_3[0] += share * a_3[0] + (1 - share) * b_3[0]
        totals_3[1] += a_3[1] if share >= 0.5 else b_3[1]
        totals_3[2] += a_3[2]

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self):
        """Return at once."""

    def segment(self, key, run):
        return run()

    def mark(self, timed=False):
        return HostMark(perf_counter()) if timed else DONE

    def after(self, mark):
        """Return at once."""

    def beside(self):
        return self

    # ── batch normalisation of ghost batches: one operation each way ──────────────────────────────────────────
    @abstractmethod
    def batch_norm(
        self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost: int, eps: float, relu=False, a_NHWC=None
    ) -> None:
        """y = gamma · (x - mean)/sqrt(var + eps) + beta + a, with mean and (biased) variance of each ghost batch of
        ``ghost`` consecutive examples, the last one possibly smaller; they are kept in mean_GC and var_GC,
        G = ceil(N / ghost). Source: Ioffe & Szegedy 2015; ghost batches: Hoffer et al. 2017. x may have any number of
        spatial axes."""

    @abstractmethod
    def batch_norm_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        """Gradients of :meth:`batch_norm`. On return ``dy`` is masked, which is the gradient of ``a``."""

    @abstractmethod
    def batch_norm_shares(self, x_NHWC, mean_GC, var_GC, ghost, total: int, mean_C, var_C, accumulate=False) -> None:
        """This rank's contribution to the batch's average statistics: mean_C = sum over ghosts of n_g/total · mean_g
        and var_C the same of the *unbiased* variances, where n_g counts this rank's examples and ``total`` all. The
        running statistics move towards their sum over ranks."""

    # ── in steps: for devices; no host that trains uses them ──────────────────────────────────────────
    def moment_parts(self, shape, ghost):
        return 0

    def positive_bytes(self, shape):
        return int(np.prod(shape))

    def norm_statistics(self, x_NHWC, statistics, moments=None):
        s, axes = statistics, tuple(range(x_NHWC.ndim - 1))
        for number, part in _ghosts(x_NHWC, s.ghost):
            x = x_NHWC[part]
            s.mean[number], s.var[number] = x.mean(axis=axes, dtype=np.float64), x.var(axis=axes, dtype=np.float64)
        s.scale[...] = s.gamma / np.sqrt(s.var + s.eps)

    def normalise(self, x_NHWC, statistics, y_NHWC, a_NHWC=None, positive=None, relu=False):
        s = statistics
        for number, part in _ghosts(x_NHWC, s.ghost):
            arrays = x_NHWC[part], s.gamma, s.beta, s.mean[number], s.var[number], y_NHWC[part]
            self.batch_norm_fixed(*arrays, s.eps, relu, None if a_NHWC is None else a_NHWC[part])
        if positive is not None:
            positive[...] = y_NHWC.reshape(-1) > 0

    def normalise_back(
        self, x_NHWC, statistics, dy_NHWC, dgamma_C, dbeta_C, mean_C, var_C, dx_NHWC, total,
        positive=None, relu=False, accumulate=False,
    ):  # fmt: skip
        s, masked = statistics, relu
        y = self.whole(Normalised(x_NHWC, s, relu))
        if positive is not None:
            dy_NHWC[positive.reshape(dy_NHWC.shape) == 0] = 0
            masked = False
        arrays = x_NHWC, s.gamma, y, s.mean, s.var, dy_NHWC.copy(), dgamma_C, dbeta_C, dx_NHWC
        self.batch_norm_back(*arrays, s.ghost, s.eps, masked, accumulate)
        self.batch_norm_shares(x_NHWC, s.mean, s.var, s.ghost, total, mean_C, var_C, accumulate)

    def whole(self, x):
        """Return an input of a convolution as an array."""
        if not isinstance(x, Normalised):
            return x
        y = np.empty_like(x.x)
        self.normalise(x.x, x.statistics, y, relu=x.relu)
        return y

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
                self._apply_rule(rule, own_w, own_g, state, lr, each.decay, int(numbers[UPDATES]), ratio)
        if rule.ema is not None:
            start, stop = ranges[0].start, ranges[-1].stop
            self._average(slots[-1][start - first : stop - first], w[start:stop], rule.ema, int(numbers[UPDATES]))

    def _multiply(self, g, numbers) -> None:
        if numbers[MULTIPLIER] != 1:
            self.scale(g, float(numbers[MULTIPLIER]))

    def _average(self, average, updated, decay: float, updates: int) -> None:
        """Move the average towards the updated weights; it begins at the first updated ones."""
        if updates == 1:
            self.copy(updated, average)
        else:
            self.approach(average, updated, 1 - decay)

    def _apply_rule(self, rule, w, g, state, lr, decay, step, ratio) -> None:
        match rule.kind:
            case "sgd" | "nesterov":
                self.sgd(w, g, state[0], lr, rule.momentum, decay, rule.kind == "nesterov")
            case "adamw" | "adam":
                update = self.adamw if rule.kind == "adamw" else self.adam
                update(w, g, state[0], state[1], lr, rule.momentum, rule.beta2, rule.eps, decay, step)
            case "rmsprop":
                self.rmsprop(w, g, state[0], state[1], lr, rule.momentum, rule.beta2, rule.eps, decay)
            case "lars":
                self.scale(g, lr * ratio)
                self.sgd(w, g, state[0], 1.0, rule.momentum, lr * ratio * decay, False)
            case "lamb":
                self.scale(g, -lr * ratio)
                self.add(w, g, w)


def _ghosts(x, ghost: int):
    """Yield each ghost batch's number, and its examples."""
    for number, start in enumerate(range(0, len(x), ghost)):
        yield number, slice(start, start + ghost)


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
        return 1.0
    if rule.kind == "lars":
        return float(rule.trust_coefficient * w_norm / (g_norm + each.decay * w_norm))
    return float(w_norm / g_norm)
