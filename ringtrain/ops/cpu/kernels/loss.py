"""Softmax and its cross-entropy, row by row, with exponentials and sums in float64."""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import kernel, u


@kernel
def shifted_sum(x, o, K):
    """(the greatest of a row, where it is, sum of exp(x - greatest)); a NaN in the row makes the sum NaN."""
    greatest, best = x[u(o)], 0
    for k in range(1, K):
        if x[u(o + k)] > greatest:
            greatest, best = x[u(o + k)], k
    total = 0.0
    for k in range(K):
        total += np.exp(np.float64(x[u(o + k)]) - greatest)
    return np.float64(greatest), best, total


@kernel
def softmax(x, y, N, K):
    for n in range(N):
        greatest, _, total = shifted_sum(x, n * K, K)
        for i in range(n * K, (n + 1) * K):
            y[u(i)] = np.exp(np.float64(x[u(i)]) - greatest) / total


@kernel
def softmax_cross_entropy(x, labels, dx, wanted, totals, K, scale, smoothing, ignore):
    """A label that is no class makes the loss NaN. ``dx`` is written where ``wanted``."""
    for n in range(labels.size):
        o = n * K
        label = labels[u(n)]
        if label == ignore:
            if wanted:
                for k in range(K):
                    dx[u(o + k)] = 0
            continue
        greatest, best, total = shifted_sum(x, o, K)
        known = label >= 0 and label < K
        shift = greatest + np.log(total)
        share = smoothing / K if known else np.nan
        loss = (1.0 - smoothing) * (shift - x[u(o + label)]) if known else np.nan
        if smoothing > 0.0:
            for k in range(K):
                loss += share * (shift - x[u(o + k)])
        totals[0] += loss
        totals[1] += 1.0 if best == label else 0.0
        totals[2] += 1.0
        if wanted:
            for k in range(K):
                dx[u(o + k)] = scale * (np.exp(np.float64(x[u(o + k)]) - shift) - share)
            if known:
                dx[u(o + label)] -= dx.dtype.type(scale * (1.0 - smoothing))
