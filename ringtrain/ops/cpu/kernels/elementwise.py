"""Elementwise operations, optimizers and sums over flat spans."""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.cpu.kernels.jit import kernel, u

GOLDEN, FIRST, SECOND = np.uint64(keys.GOLDEN), np.uint64(keys.FIRST), np.uint64(keys.SECOND)
LANES = 64  # of a sum: so many additions need not wait for one another
DROPPED_BITS = np.uint64(64 - keys.DROPOUT_BITS)


@kernel
def add_relu(a, b, y):
    zero = y.dtype.type(0)
    for i in range(y.size):
        v = a[u(i)] + b[u(i)]
        y[u(i)] = zero if v <= zero else v


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
def sgd(w, g, v, lr, momentum, decay, nesterov):
    rate, m, d = w.dtype.type(lr), w.dtype.type(momentum), w.dtype.type(decay)
    for i in range(w.size):
        gradient = g[u(i)] + d * w[u(i)]
        velocity = m * v[u(i)] + gradient
        v[u(i)] = velocity
        w[u(i)] -= rate * (gradient + m * velocity if nesterov else velocity)


@kernel
def adamw(w, g, m, v, lr, beta1, beta2, eps, decay, correction1, correction2):
    """The corrections are 1/(1 - beta^step)."""
    real = w.dtype.type
    one = real(1)
    b1, b2 = real(beta1), real(beta2)
    shrink, rate, c2, e = one - real(lr * decay), real(lr * correction1), real(correction2), real(eps)
    for i in range(w.size):
        gradient = g[u(i)]
        first = b1 * m[u(i)] + (one - b1) * gradient
        second = b2 * v[u(i)] + (one - b2) * gradient * gradient
        m[u(i)] = first
        v[u(i)] = second
        w[u(i)] = shrink * w[u(i)] - rate * first / (np.sqrt(second * c2) + e)


@kernel
def adam_direction(w, g, m, v, beta1, beta2, eps, decay, correction1, correction2):
    """As :func:`adamw`, but the step is left in g, before it is scaled."""
    real = w.dtype.type
    one = real(1)
    b1, b2 = real(beta1), real(beta2)
    c1, c2, e, d = real(correction1), real(correction2), real(eps), real(decay)
    for i in range(w.size):
        gradient = g[u(i)]
        first = b1 * m[u(i)] + (one - b1) * gradient
        second = b2 * v[u(i)] + (one - b2) * gradient * gradient
        m[u(i)] = first
        v[u(i)] = second
        g[u(i)] = c1 * first / (np.sqrt(second * c2) + e) + d * w[u(i)]


@kernel
def approach(w, g, rate):
    r = w.dtype.type(rate)
    for i in range(w.size):
        w[u(i)] += r * (g[u(i)] - w[u(i)])


@kernel
def square_sum(x, lanes):
    """Element i is added in lane i mod LANES; then lanes one after another. ``lanes``: float64 [LANES], of any content,
    since memory that a kernel asks for would be asked for in each call."""
    for j in range(LANES):
        lanes[u(j)] = 0.0
    whole = x.size - x.size % LANES
    for o in range(0, whole, LANES):
        for j in range(LANES):
            v = np.float64(x[u(o + j)])
            lanes[u(j)] += v * v
    for i in range(whole, x.size):
        v = np.float64(x[u(i)])
        lanes[u(i - whole)] += v * v
    total = 0.0
    for j in range(LANES):
        total += lanes[u(j)]
    return total


@kernel
def nonfinite(x):
    count = 0
    for i in range(x.size):
        count += 0 if np.isfinite(x[u(i)]) else 1
    return count
