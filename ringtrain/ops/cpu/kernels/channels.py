"""Operations with one value a channel: bias, and batch normalisation of one ghost batch.

A loop over 10 or 16 channels is too short to be fast, so rows are *widened*: several rows are taken as one,
beside values that are repeated as often. ``wide`` is [4, width], rows of such values and sums, where ``width``
(see :func:`wide_row`) is a multiple of the channels; the last row may be cut short. Sums are made in the array's
own type over a tile of rows, and go from there into float64 ``totals`` [2, channels].
"""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import kernel, u

WIDE = 128
TILE_ROWS = 32


def wide_row(channels: int) -> int:
    return channels * max(1, WIDE // channels)


@kernel
def repeat(values, wide, width):
    """wide[j] = values[j mod channels]"""
    channels = values.size
    for o in range(0, width, channels):
        for c in range(channels):
            wide[u(o + c)] = values[u(c)]


@kernel
def fold(partial, totals, width):
    """Add a tile's sums to the totals of the channels, and start the next tile's at zero."""
    zero = partial.dtype.type(0)
    channels = totals.size
    for o in range(0, width, channels):
        for c in range(channels):
            totals[u(c)] += np.float64(partial[u(o + c)])
            partial[u(o + c)] = zero


@kernel
def store(totals, out, accumulate):
    for c in range(out.size):
        out[c] = totals[c] + out[c] if accumulate else totals[c]


@kernel
def add_bias(y, bias, wide, width, relu):
    """y += bias, and max(·, 0) with ``relu``."""
    values = wide[0]
    repeat(bias, values, width)
    zero = y.dtype.type(0)
    for o in range(0, y.size, width):
        count = min(width, y.size - o)
        if relu:
            for j in range(count):
                v = y[u(o + j)] + values[u(j)]
                y[u(o + j)] = zero if v <= zero else v
        else:
            for j in range(count):
                y[u(o + j)] += values[u(j)]


@kernel
def bias_back(dy, y, db, wide, totals, width, relu, accumulate):
    """With ``relu`` dy = dy where y > 0, else 0, in place. db = sum of dy over rows."""
    zero = dy.dtype.type(0)
    sums = wide[0]
    sums[:] = zero
    totals[0, :] = 0.0
    tile = TILE_ROWS * width
    for start in range(0, dy.size, tile):
        for o in range(start, min(start + tile, dy.size), width):
            count = min(width, dy.size - o)
            if relu:
                for j in range(count):
                    dy[u(o + j)] = dy[u(o + j)] if y[u(o + j)] > zero else zero
            for j in range(count):
                sums[u(j)] += dy[u(o + j)]
        fold(sums, totals[0], width)
    store(totals[0], db, accumulate)


@kernel
def moments(x, mean, var, wide, totals, width):
    """Mean and biased variance of each channel, from sums about the first row's values: no cancellation where
    the mean is large beside the deviation."""
    channels = mean.size
    shift, sums, squares = wide[0], wide[1], wide[2]
    repeat(x[:channels], shift, width)
    wide[1:3] = x.dtype.type(0)
    totals[:] = 0.0
    tile = TILE_ROWS * width
    for start in range(0, x.size, tile):
        for o in range(start, min(start + tile, x.size), width):
            for j in range(min(width, x.size - o)):
                d = x[u(o + j)] - shift[u(j)]
                sums[u(j)] += d
                squares[u(j)] += d * d
        fold(sums, totals[0], width)
        fold(squares, totals[1], width)
    share = channels / x.size
    for c in range(channels):
        off = totals[0, c] * share
        mean[c] = np.float64(shift[c]) + off
        var[c] = max(totals[1, c] * share - off * off, 0.0) if totals[1, c] == totals[1, c] else np.nan


@kernel
def normalise(x, y, gamma, beta, mean, var, eps, wide, width, relu):
    """y = (x - mean) · gamma/sqrt(var + eps) + beta"""
    zero = x.dtype.type(0)
    centre, factor, offset = wide[0], wide[1], wide[2]
    repeat(mean, centre, width)
    repeat(beta, offset, width)
    for c in range(gamma.size):
        factor[c] = gamma[c] / np.sqrt(np.float64(var[c]) + eps)
    repeat(factor[: gamma.size], factor, width)
    for o in range(0, x.size, width):
        count = min(width, x.size - o)
        if relu:
            for j in range(count):
                v = (x[u(o + j)] - centre[u(j)]) * factor[u(j)] + offset[u(j)]
                y[u(o + j)] = zero if v <= zero else v
        else:
            for j in range(count):
                y[u(o + j)] = (x[u(o + j)] - centre[u(j)]) * factor[u(j)] + offset[u(j)]


@kernel
def gradient_sums(x, y, dy, mean, wide, totals, width, relu):
    """totals = (sum of dy, sum of dy · (x - mean)) a channel; with ``relu`` dy is masked by y > 0 in place."""
    zero = x.dtype.type(0)
    centre, sums, products = wide[0], wide[1], wide[2]
    repeat(mean, centre, width)
    wide[1:3] = zero
    totals[:] = 0.0
    tile = TILE_ROWS * width
    for start in range(0, x.size, tile):
        for o in range(start, min(start + tile, x.size), width):
            count = min(width, x.size - o)
            # Three loops, because the compiler gives up on vectors where more arrays than a few might overlap.
            if relu:
                for j in range(count):
                    dy[u(o + j)] = dy[u(o + j)] if y[u(o + j)] > zero else zero
            for j in range(count):
                sums[u(j)] += dy[u(o + j)]
            for j in range(count):
                products[u(j)] += dy[u(o + j)] * (x[u(o + j)] - centre[u(j)])
        fold(sums, totals[0], width)
        fold(products, totals[1], width)


@kernel
def add_gradients(totals, var, dgamma, dbeta, eps):
    """Adds to dgamma and dbeta (float64) what the totals of gradient_sums make."""
    for c in range(dgamma.size):
        dgamma[c] += totals[1, c] / np.sqrt(np.float64(var[c]) + eps)
        dbeta[c] += totals[0, c]


@kernel
def input_gradient(x, dy, gamma, mean, var, totals, share, dx, eps, wide, width):
    """dx = gamma · inv · (dy - sum(dy)/m - (x - mean) · inv² · sum(dy · (x - mean))/m), from the totals of
    gradient_sums and ``share`` = 1/m."""
    channels = gamma.size
    centre, factor, slope, level = wide[0], wide[1], wide[2], wide[3]
    repeat(mean, centre, width)
    for c in range(channels):
        inverse = 1.0 / np.sqrt(np.float64(var[c]) + eps)
        factor[c] = gamma[c] * inverse
        slope[c] = gamma[c] * inverse**3 * totals[1, c] * share
        level[c] = gamma[c] * inverse * totals[0, c] * share
    for values in (factor, slope, level):
        repeat(values[:channels], values, width)
    for o in range(0, x.size, width):
        for j in range(min(width, x.size - o)):
            centred = x[u(o + j)] - centre[u(j)]
            dx[u(o + j)] = factor[u(j)] * dy[u(o + j)] - slope[u(j)] * centred - level[u(j)]


@kernel
def shares(mean, var, rows, pixels, ghost, total, mean_out, var_out, accumulate):
    """See Ops.batch_norm_shares. ``mean`` and ``var`` are [G, C]; ``rows`` examples of ``pixels`` pixels."""
    for c in range(mean_out.size):
        mean_sum = np.float64(mean_out[c]) if accumulate else 0.0
        var_sum = np.float64(var_out[c]) if accumulate else 0.0
        for g in range(mean.shape[0]):
            examples = min(ghost, rows - g * ghost)
            count = examples * pixels
            mean_sum += examples / total * mean[g, c]
            var_sum += examples / total * var[g, c] * count / max(count - 1, 1)
        mean_out[c] = mean_sum
        var_out[c] = var_sum
