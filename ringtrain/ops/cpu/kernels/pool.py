"""Pooling: for each output pixel, the part of its window inside the image, channel by channel."""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import kernel, u


@kernel
def max_pool(x, y, where, N, H, W, C, P, Q, size, stride, pad):
    zero = x.dtype.type(0)
    for n in range(N):
        for p in range(P):
            top = p * stride - pad
            h0, h1 = max(top, 0), min(top + size, H)
            for q in range(Q):
                left = q * stride - pad
                w0, w1 = max(left, 0), min(left + size, W)
                o = ((n * P + p) * Q + q) * C
                if h0 >= h1 or w0 >= w1:
                    for c in range(C):
                        y[u(o + c)] = zero
                        where[u(o + c)] = 0
                    continue
                element = np.uint8((h0 - top) * size + w0 - left)
                i = ((n * H + h0) * W + w0) * C
                for c in range(C):
                    y[u(o + c)] = x[u(i + c)]
                    where[u(o + c)] = element
                for h in range(h0, h1):
                    for w in range(w0, w1):
                        element = np.uint8((h - top) * size + w - left)
                        i = ((n * H + h) * W + w) * C
                        for c in range(C):
                            v, best = x[u(i + c)], y[u(o + c)]
                            better = (not (v <= best)) & (best == best)
                            y[u(o + c)] = v if better else best
                            where[u(o + c)] = element if better else where[u(o + c)]


@kernel
def max_pool_back(dy, where, dx, N, H, W, C, P, Q, size, stride, pad):
    zero = dx.dtype.type(0)
    for i in range(dx.size):
        dx[u(i)] = zero
    for n in range(N):
        for p in range(P):
            top = p * stride - pad
            for q in range(Q):
                left = q * stride - pad
                o = ((n * P + p) * Q + q) * C
                for h in range(max(top, 0), min(top + size, H)):
                    for w in range(max(left, 0), min(left + size, W)):
                        element = np.uint8((h - top) * size + w - left)
                        i = ((n * H + h) * W + w) * C
                        for c in range(C):
                            dx[u(i + c)] += dy[u(o + c)] if where[u(o + c)] == element else zero


@kernel
def avg_pool(x, y, N, H, W, C, P, Q, size, stride, pad):
    zero = x.dtype.type(0)
    for n in range(N):
        for p in range(P):
            top = p * stride - pad
            height = min(top + size, H + pad) - top
            for q in range(Q):
                left = q * stride - pad
                share = x.dtype.type(1.0 / (height * (min(left + size, W + pad) - left)))
                o = ((n * P + p) * Q + q) * C
                for c in range(C):
                    y[u(o + c)] = zero
                for h in range(max(top, 0), min(top + size, H)):
                    for w in range(max(left, 0), min(left + size, W)):
                        i = ((n * H + h) * W + w) * C
                        for c in range(C):
                            y[u(o + c)] += x[u(i + c)]
                for c in range(C):
                    y[u(o + c)] *= share


@kernel
def avg_pool_back(dy, dx, N, H, W, C, P, Q, size, stride, pad):
    zero = dx.dtype.type(0)
    for i in range(dx.size):
        dx[u(i)] = zero
    for n in range(N):
        for p in range(P):
            top = p * stride - pad
            height = min(top + size, H + pad) - top
            for q in range(Q):
                left = q * stride - pad
                share = dx.dtype.type(1.0 / (height * (min(left + size, W + pad) - left)))
                o = ((n * P + p) * Q + q) * C
                for h in range(max(top, 0), min(top + size, H)):
                    for w in range(max(left, 0), min(left + size, W)):
                        i = ((n * H + h) * W + w) * C
                        for c in range(C):
                            dx[u(i + c)] += share * dy[u(o + c)]


@kernel
def global_avg_pool(x, y, N, pixels, C):
    zero = x.dtype.type(0)
    share = x.dtype.type(1.0 / pixels)
    for n in range(N):
        for c in range(C):
            y[u(n * C + c)] = zero
        for i in range(n * pixels, (n + 1) * pixels):
            for c in range(C):
                y[u(n * C + c)] += x[u(i * C + c)]
        for c in range(C):
            y[u(n * C + c)] *= share


@kernel
def global_avg_pool_back(dy, dx, N, pixels, C):
    share = dx.dtype.type(1.0 / pixels)
    for n in range(N):
        for i in range(n * pixels, (n + 1) * pixels):
            for c in range(C):
                dx[u(i * C + c)] = dy[u(n * C + c)] * share
