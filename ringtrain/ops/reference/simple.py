"""Elementwise operations, linear layers, and helpers of the other modules."""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.host import host_number


def put(gradient, out, accumulate):
    """Set out = gradient, or out += gradient."""
    if accumulate:
        out += gradient
    else:
        out[...] = gradient


def mask(dy, y, relu):
    """Return dy where the output of the fused ReLU was positive, else 0."""
    return np.where(y > 0, dy, 0).astype(dy.dtype, copy=False) if relu else dy


def bias_gradient(dy, db_K, accumulate):
    if db_K is not None:
        put(dy.sum(axis=tuple(range(dy.ndim - 1)), dtype=np.float64), db_K, accumulate)


def bias_back(y, dy, db_C, relu=False, accumulate=False):
    dy[...] = mask(dy, y, relu)
    bias_gradient(dy, db_C, accumulate)


def linear(x_ND, w_DK, b_K, y_NK, relu=False):
    np.matmul(x_ND, w_DK, out=y_NK)
    if b_K is not None:
        y_NK += b_K
    if relu:
        np.maximum(y_NK, 0, out=y_NK)


def linear_back(x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False):
    dy_NK = mask(dy_NK, y_NK, relu)
    bias_gradient(dy_NK, db_K, accumulate)
    put(x_ND.T @ dy_NK, dw_DK, accumulate)
    if dx_ND is not None:
        np.matmul(dy_NK, w_DK.T, out=dx_ND)


def add(a, b, y, relu=False):
    np.add(a, b, out=y)
    if relu:
        np.maximum(y, 0, out=y)


def scale(x, factor):
    x *= x.dtype.type(host_number(factor))


def relu(x, y):
    np.maximum(x, 0, out=y)


def relu_back(y, dy, dx):
    dx[...] = mask(dy, y, relu=True)


def square_sum(x):
    return float(np.square(x, dtype=np.float64).sum())


def nonfinite(x):
    return int(x.size - np.isfinite(x).sum())


def dropout(x_ND, y_ND, examples_N, key_1, layer, rate):
    key = keys.additive_key(int(key_1[0]), layer)
    keep_ND = random_bits(key, examples_N, y_ND[0].size if len(y_ND) else 0) >= keys.dropout_threshold(rate)
    factor = x_ND.dtype.type(1 / (1 - rate))
    np.multiply(x_ND, (keep_ND * factor).reshape(x_ND.shape), out=y_ND)


def random_bits(key, examples_N, count):
    """Return DROPOUT_BITS random bits for each of ``count`` elements of each example. Shape: [N, count], uint64."""
    rows_N = _absorb(np.uint64(key & keys.MASK), examples_N.astype(np.uint64))
    bits_ND = _absorb(rows_N[:, None], np.arange(count, dtype=np.uint64)[None, :])
    return bits_ND >> np.uint64(64 - keys.DROPOUT_BITS)


def _absorb(state, number):
    """Return splitmix(state + number) of arrays, which wrap around modulo 2^64 by themselves."""
    state = state + (number + np.uint64(keys.GOLDEN))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(keys.FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(keys.SECOND)
    return state ^ (state >> np.uint64(31))


def prepare_images(images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N):
    _, height, width, _ = images_NHWC.shape
    _, p, q, _ = y_NPQC.shape
    y_NPQC[...] = 0
    for image, y, top, left, flip in zip(images_NHWC, y_NPQC, top_N, left_N, flip_N, strict=True):
        p0, p1 = max(0, -top), max(0, min(p, height - top))
        q0, q1 = max(0, -left), max(0, min(q, width - left))
        inside = np.s_[top + p0 : top + p1, left + q0 : left + q1]
        if p1 <= p0 or q1 <= q0:
            continue
        target = y[:, ::-1] if flip else y
        target[p0:p1, q0:q1] = (image[inside].astype(y.dtype) - mean_HWC[inside]) * scale_C
