"""Softmax and its cross-entropy, and losses of values."""

import numpy as np

from ringtrain.ops.host import host_number


def softmax(x_NK, y_NK):
    log_NK = _log_softmax(x_NK)
    y_NK[...] = np.exp(log_NK)


def softmax_cross_entropy(x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1, factor_1=None):
    valid_N = labels_N != ignore
    log_NK = _log_softmax(x_NK)
    target_NK = _targets(labels_N, valid_N, x_NK.shape[1], smoothing)
    weighted_NK = np.where(target_NK == 0, 0, target_NK * log_NK)  # a class of no share may be impossible: -inf
    losses_N = -weighted_NK.sum(axis=1)
    totals_3[0] += losses_N[valid_N].sum()
    totals_3[1] += (x_NK.argmax(axis=1) == labels_N)[valid_N].sum()
    totals_3[2] += valid_N.sum()
    if dx_NK is not None:
        dx_NK[...] = np.where(valid_N[:, None], scale * host_number(factor_1) * (np.exp(log_NK) - target_NK), 0)


def value_loss(kind, x_N, labels_N, dx_N, totals_3, scale, delta=1.0, factor_1=None):
    x, y = x_N.reshape(-1).astype(np.float64), labels_N.reshape(-1).astype(np.float64)
    valid = (labels_N.reshape(-1) != -1) if labels_N.dtype.kind == "i" else np.ones(len(y), bool)
    loss, slope = VALUE_LOSSES[kind](x, y, delta)
    totals_3[0] += loss[valid].sum()
    totals_3[1] += ((x > 0) == (y > 0.5))[valid].sum() if kind == "bce" else 0
    totals_3[2] += valid.sum()
    if dx_N is not None:
        dx_N[...] = np.where(valid, scale * host_number(factor_1) * slope, 0).reshape(dx_N.shape)


def _huber(x, y, delta):
    d = x - y
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2)), np.clip(d, -delta, delta)


def _bce(x, y, delta):
    y = np.where((y >= 0) & (y <= 1), y, np.nan)
    tail = np.exp(-np.abs(x))
    return np.maximum(x, 0) - x * y + np.log1p(tail), np.where(x > 0, 1, tail) / (1 + tail) - y


VALUE_LOSSES = {  # → (losses, d(losses)/dx)
    "mse": lambda x, y, delta: ((x - y) ** 2, 2 * (x - y)),
    "mae": lambda x, y, delta: (np.abs(x - y), np.sign(x - y)),
    "huber": _huber,
    "bce": _bce,
}


def _targets(labels_N, valid_N, classes, smoothing):
    """(1 - s) · onehot + s/K. A label that is no class has NaN for a target, and so for a loss."""
    target_NK = np.full((len(labels_N), classes), smoothing / classes)
    known_N = valid_N & (labels_N >= 0) & (labels_N < classes)
    target_NK[known_N, labels_N[known_N]] += 1 - smoothing
    target_NK[valid_N & ~known_N] = np.nan
    return target_NK


def _log_softmax(x_NK):
    x_NK = x_NK.astype(np.float64)
    x_NK -= x_NK.max(axis=1, keepdims=True)
    return x_NK - np.log(np.exp(x_NK).sum(axis=1, keepdims=True))
