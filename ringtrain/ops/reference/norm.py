"""Local response normalisation, batch normalisation, and that of groups of channels."""

import numpy as np

from ringtrain.ops.reference.simple import mask, put


def lrn_across(x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k):
    scale_NHWC[...] = k + alpha / size * _line_sum(x_NHWC * x_NHWC, 3, size)
    y_NHWC[...] = x_NHWC * scale_NHWC**-beta


def lrn_across_back(x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
    shared = _line_sum(dy_NHWC * y_NHWC / scale_NHWC, 3, size, mirrored=True)
    dx_NHWC[...] = dy_NHWC * scale_NHWC**-beta - 2 * alpha * beta / size * x_NHWC * shared


def lrn_within(x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta):
    sums = _line_sum(_line_sum(x_NHWC * x_NHWC, 1, size), 2, size)
    scale_NHWC[...] = 1 + alpha / size**2 * sums
    y_NHWC[...] = x_NHWC * scale_NHWC**-beta


def lrn_within_back(x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
    shared = _line_sum(dy_NHWC * y_NHWC / scale_NHWC, 1, size, mirrored=True)
    shared = _line_sum(shared, 2, size, mirrored=True)
    dx_NHWC[...] = dy_NHWC * scale_NHWC**-beta - 2 * alpha * beta / size**2 * x_NHWC * shared


def _line_sum(x, axis, size, mirrored=False):
    """Sum of ``size`` neighbours along ``axis``: (size - 1)//2 before, the rest after; or the other way
    round, which gathers from those whose window an element lies in."""
    before = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[axis] = (size - 1 - before, before) if mirrored else (before, size - 1 - before)
    padded = np.pad(x, widths)
    return np.lib.stride_tricks.sliding_window_view(padded, size, axis=axis).sum(axis=-1)


def batch_norm(x, gamma_C, beta_C, y, mean_GC, var_GC, ghost, eps, relu):
    axes = tuple(range(x.ndim - 1))
    for g, part in enumerate(_ghosts(len(x), ghost)):
        mean_GC[g] = x[part].mean(axis=axes, dtype=np.float64)
        var_GC[g] = x[part].var(axis=axes, dtype=np.float64)
        batch_norm_fixed(x[part], gamma_C, beta_C, mean_GC[g], var_GC[g], y[part], eps, relu)


def batch_norm_fixed(x, gamma_C, beta_C, mean_C, var_C, y, eps, relu):
    y[...] = (x - mean_C) * (gamma_C * _inverse(var_C, eps)) + beta_C
    if relu:
        np.maximum(y, 0, out=y)


def batch_norm_back(x, gamma_C, y, mean_GC, var_GC, dy, dgamma_C, dbeta_C, dx, ghost, eps, relu, accumulate):
    dy = mask(dy, y, relu)
    axes = tuple(range(x.ndim - 1))
    dgamma, dbeta = np.zeros(gamma_C.shape), np.zeros(gamma_C.shape)
    for g, part in enumerate(_ghosts(len(x), ghost)):
        inverse_C = _inverse(var_GC[g], eps)
        xhat = (x[part] - mean_GC[g]) * inverse_C
        dgamma_g = (dy[part] * xhat).sum(axis=axes, dtype=np.float64)
        dbeta_g = dy[part].sum(axis=axes, dtype=np.float64)
        dgamma += dgamma_g
        dbeta += dbeta_g
        if dx is not None:
            count = xhat.size // xhat.shape[-1]
            dx[part] = gamma_C * inverse_C * (dy[part] - (dbeta_g + xhat * dgamma_g) / count)
    put(dgamma, dgamma_C, accumulate)
    put(dbeta, dbeta_C, accumulate)


def batch_norm_shares(x, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate):
    mean, var = np.zeros(mean_C.shape), np.zeros(var_C.shape)
    for g, part in enumerate(_ghosts(len(x), ghost)):
        share = (part.stop - part.start) / total
        count = x[part].size // x.shape[-1]
        mean += share * mean_GC[g]
        var += share * var_GC[g] * count / max(count - 1, 1)
    put(mean, mean_C, accumulate)
    put(var, var_C, accumulate)


def batch_moments(x, moments_2C):
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    moments_2C[...] = (rows.mean(axis=0), rows.var(axis=0)) if len(rows) else 0


def batch_norm_sums(x, y, mean_C, dy, sums_2C, relu):
    dy[...] = mask(dy, y, relu)
    axes = tuple(range(x.ndim - 1))
    sums_2C[0] = dy.sum(axis=axes, dtype=np.float64)
    sums_2C[1] = (dy * (x - mean_C)).sum(axis=axes, dtype=np.float64)


def batch_norm_dx(x, gamma_C, mean_C, var_C, dy, sums_2C, count, dx, eps):
    inverse_C = _inverse(var_C, eps)
    level_C, slope_C = sums_2C / count
    dx[...] = gamma_C * inverse_C * (dy - level_C - (x - mean_C) * inverse_C**2 * slope_C)


def group_norm(x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps):
    x = _grouped(x_NSC, mean_NG.shape[1])
    mean, var = (x.mean(axis=(1, 3), dtype=np.float64), x.var(axis=(1, 3), dtype=np.float64))
    mean_NG[...], inverse_NG[...] = mean, 1 / np.sqrt(var + eps)
    xhat = (x - mean[:, None, :, None]) / np.sqrt(var + eps)[:, None, :, None]
    y_NSC[...] = gamma_C * xhat.reshape(x_NSC.shape) + beta_C


def group_norm_back(x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate):
    groups, inverse = mean_NG.shape[1], inverse_NG[:, None, :, None]
    xhat = (_grouped(x_NSC, groups) - mean_NG[:, None, :, None]) * inverse
    put((dy_NSC * xhat.reshape(x_NSC.shape)).sum(axis=(0, 1), dtype=np.float64), dgamma_C, accumulate)
    put(dy_NSC.sum(axis=(0, 1), dtype=np.float64), dbeta_C, accumulate)
    if dx_NSC is not None:
        slope = _grouped(dy_NSC * gamma_C, groups)
        level, along = (each.mean(axis=(1, 3), keepdims=True) for each in (slope, slope * xhat))
        dx_NSC[...] = (inverse * (slope - level - xhat * along)).reshape(x_NSC.shape)


def _grouped(x_NSC, groups):
    """Return x as [N, S, G, C/G]."""
    n, pixels, channels = x_NSC.shape
    return x_NSC.reshape(n, pixels, groups, channels // groups)


def _inverse(var_C, eps):
    return 1 / np.sqrt(var_C + var_C.dtype.type(eps))


def _ghosts(count, ghost):
    return [slice(start, min(start + ghost, count)) for start in range(0, count, ghost)]
