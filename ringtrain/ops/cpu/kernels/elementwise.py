"""Elementwise operations over flat spans."""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.cpu.kernels.jit import kernel, u

GOLDEN, FIRST, SECOND = np.uint64(keys.GOLDEN), np.uint64(keys.FIRST), np.uint64(keys.SECOND)
DROPPED_BITS = np.uint64(64 - keys.DROPOUT_BITS)


@kernel
def relu_back(y, dy, dx):
    zero = dy.dtype.type(0)
    for i in range(y.size):
        dx[u(i)] = dy[u(i)] if y[u(i)] > zero else zero


@kernel
def scale(x, factor):
    f = x.dtype.type(factor)
    for i in range(x.size):
        x[u(i)] *= f


@kernel
def scramble(state):
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))


@kernel
def dropout(x, y, examples, width, key, threshold, factor):
    """``key`` and ``threshold`` are uint64; see ringtrain.ops.keys for the arithmetic."""
    f = x.dtype.type(factor)
    zero = x.dtype.type(0)
    for n in range(examples.size):
        row = scramble(key + GOLDEN + np.uint64(examples[n]))
        o = n * width
        for d in range(width):
            bits = scramble(row + GOLDEN + np.uint64(d)) >> DROPPED_BITS
            y[u(o + d)] = x[u(o + d)] * (zero if bits < threshold else f)


@kernel
def prepare_images(images, y, mean, scale, top, left, flip, H, W, P, Q):
    zero = y.dtype.type(0)
    C = scale.size
    for n in range(top.size):
        q0 = max(0, -left[n])
        q1 = max(q0, min(Q, W - left[n]))
        for p in range(P):
            o = (n * P + p) * Q * C
            h = p + top[n]
            inside = h >= 0 and h < H
            if not inside or q0 > 0 or q1 < Q:
                for i in range(Q * C):
                    y[u(o + i)] = zero
            if inside:
                m = (h * W + left[n]) * C
                i = n * H * W * C + m
                for q in range(q0, q1):
                    t = o + (Q - 1 - q if flip[n] else q) * C
                    for c in range(C):
                        pixel = y.dtype.type(images[u(i + q * C + c)])
                        y[u(t + c)] = (pixel - mean[u(m + q * C + c)]) * scale[u(c)]


@kernel
def approach(w, g, rate):
    r = w.dtype.type(rate)
    for i in range(w.size):
        w[u(i)] += r * (g[u(i)] - w[u(i)])
