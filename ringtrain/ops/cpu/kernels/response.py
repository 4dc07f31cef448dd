"""Local response normalisation."""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import fused, u


@fused
def times_power(x, xo, scale, so, y, yo, count, beta):
    """y = x · scale^-beta, ``count`` elements from the given offsets. The usual beta, 3/4, takes square roots."""
    if beta == 0.75:
        one = x.dtype.type(1)
        for i in range(count):
            root = one / np.sqrt(scale[u(so + i)])
            y[u(yo + i)] = x[u(xo + i)] * (root * np.sqrt(root))
    else:
        exponent = x.dtype.type(-beta)
        for i in range(count):
            y[u(yo + i)] = x[u(xo + i)] * scale[u(so + i)] ** exponent


@fused
def across(x, y, scale, line, rows, C, size, alpha, beta, k):
    """``line`` holds the squares of one pixel between zeros: C + size - 1 elements."""
    before = (size - 1) // 2
    a, start = x.dtype.type(alpha / size), x.dtype.type(k)
    line[:] = x.dtype.type(0)
    for row in range(rows):
        o = row * C
        for c in range(C):
            line[u(before + c)] = x[u(o + c)] * x[u(o + c)]
            scale[u(o + c)] = start
        for t in range(size):
            for c in range(C):
                scale[u(o + c)] += a * line[u(t + c)]
    times_power(x, 0, scale, 0, y, 0, rows * C, beta)


@fused
def across_back(x, y, scale, dy, dx, line, rows, C, size, alpha, beta):
    after = size - 1 - (size - 1) // 2
    factor = x.dtype.type(2.0 * alpha * beta / size)
    line[:] = x.dtype.type(0)
    times_power(dy, 0, scale, 0, dx, 0, rows * C, beta)
    for row in range(rows):
        o = row * C
        for c in range(C):
            line[u(after + c)] = factor * dy[u(o + c)] * y[u(o + c)] / scale[u(o + c)]
        for t in range(size):
            for c in range(C):
                dx[u(o + c)] -= x[u(o + c)] * line[u(t + c)]


@fused
def add_lines(image, line, h, before, H, W, C, size):
    """Sum of those of the ``size`` lines of the image around line h that exist, into ``line`` between zeros."""
    zero = line.dtype.type(0)
    start = before * C
    for i in range(W * C):
        line[u(start + i)] = zero
    for other in range(max(0, h - before), min(H, h - before + size)):
        o = other * W * C
        for i in range(W * C):
            line[u(start + i)] += image[u(o + i)]


@fused
def within(x, y, scale, image, line, N, H, W, C, size, alpha, beta):
    """``image`` holds squares of one example; ``line`` a sum of lines between zeros, (W + size - 1) · C."""
    before = (size - 1) // 2
    a, one = x.dtype.type(alpha / (size * size)), x.dtype.type(1)
    length = W * C
    line[:] = x.dtype.type(0)
    for n in range(N):
        for i in range(H * length):
            v = x[u(n * H * length + i)]
            image[u(i)] = v * v
        for h in range(H):
            add_lines(image, line, h, before, H, W, C, size)
            o = (n * H + h) * length
            for i in range(length):
                scale[u(o + i)] = one
            for t in range(size):
                for i in range(length):
                    scale[u(o + i)] += a * line[u(t * C + i)]
            times_power(x, o, scale, o, y, o, length, beta)


@fused
def within_back(x, y, scale, dy, dx, image, line, N, H, W, C, size, alpha, beta):
    after = size - 1 - (size - 1) // 2
    factor = x.dtype.type(2.0 * alpha * beta / (size * size))
    length = W * C
    line[:] = x.dtype.type(0)
    for n in range(N):
        base = n * H * length
        for i in range(H * length):
            image[u(i)] = factor * dy[u(base + i)] * y[u(base + i)] / scale[u(base + i)]
        for h in range(H):
            add_lines(image, line, h, after, H, W, C, size)
            o = base + h * length
            times_power(dy, o, scale, o, dx, o, length, beta)
            for t in range(size):
                for i in range(length):
                    dx[u(o + i)] -= x[u(o + i)] * line[u(t * C + i)]
