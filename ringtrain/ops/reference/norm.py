"""Batch normalisation, and normalisation of groups of channels."""

import numpy as np

from ringtrain.ops.reference.simple import mask, put


def batch_norm(x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False, a_NHWC=None):
    axes = tuple(range(x_NHWC.ndim - 1))
    for g, part in enumerate(_ghosts(len(x_NHWC), ghost)):
        mean_GC[g] = x_NHWC[part].mean(axis=axes, dtype=np.float64)
        var_GC[g] = x_NHWC[part].var(axis=axes, dtype=np.float64)
        arrays = x_NHWC[part], gamma_C, beta_C, mean_GC[g], var_GC[g], y_NHWC[part]
        batch_norm_fixed(*arrays, eps, relu, None if a_NHWC is None else a_NHWC[part])


def batch_norm_fixed(x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False, a_NHWC=None):
    y_NHWC[...] = (x_NHWC - mean_C) * (gamma_C * _inverse(var_C, eps)) + beta_C
    if a_NHWC is not None:
        y_NHWC += a_NHWC
    if relu:
        np.maximum(y_NHWC, 0, out=y_NHWC)


def batch_norm_back(
    x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
    relu=False, accumulate=False,
):  # fmt: skip
    dy_NHWC[...] = mask(dy_NHWC, y_NHWC, relu)
    axes = tuple(range(x_NHWC.ndim - 1))
    dgamma, dbeta = np.zeros(gamma_C.shape), np.zeros(gamma_C.shape)
    for g, part in enumerate(_ghosts(len(x_NHWC), ghost)):
        inverse_C = _inverse(var_GC[g], eps)
        xhat = (x_NHWC[part] - mean_GC[g]) * inverse_C
        dgamma_g = (dy_NHWC[part] * xhat).sum(axis=axes, dtype=np.float64)
        dbeta_g = dy_NHWC[part].sum(axis=axes, dtype=np.float64)
        dgamma += dgamma_g
        dbeta += dbeta_g
        if dx_NHWC is not None:
            count = xhat.size // xhat.shape[-1]
            dx_NHWC[part] = gamma_C * inverse_C * (dy_NHWC[part] - (dbeta_g + xhat * dgamma_g) / count)
    put(dgamma, dgamma_C, accumulate)
    put(dbeta, dbeta_C, accumulate)


def batch_norm_shares(x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate=False):
    mean, var = np.zeros(mean_C.shape), np.zeros(var_C.shape)
    for g, part in enumerate(_ghosts(len(x_NHWC), ghost)):
        share = (part.stop - part.start) / total
        count = x_NHWC[part].size // x_NHWC.shape[-1]
        mean += share * mean_GC[g]
        var += share * var_GC[g] * count / max(count - 1, 1)
    put(mean, mean_C, accumulate)
    put(var, var_C, accumulate)


def batch_moments(x_NHWC, moments_2C):
    rows = x_NHWC.reshape(-1, x_NHWC.shape[-1]).astype(np.float64)
    moments_2C[...] = (rows.mean(axis=0), rows.var(axis=0)) if len(rows) else 0


def batch_norm_sums(x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
    dy_NHWC[...] = mask(dy_NHWC, y_NHWC, relu)
    axes = tuple(range(x_NHWC.ndim - 1))
    sums_2C[0] = dy_NHWC.sum(axis=axes, dtype=np.float64)
    sums_2C[1] = (dy_NHWC * (x_NHWC - mean_C)).sum(axis=axes, dtype=np.float64)


def batch_norm_dx(x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
    inverse_C = _inverse(var_C, eps)
    level_C, slope_C = sums_2C / count
    dx_NHWC[...] = gamma_C * inverse_C * (dy_NHWC - level_C - (x_NHWC - mean_C) * inverse_C**2 * slope_C)


def group_norm(x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps):
    x = _grouped(x_NSC, mean_NG.shape[1])
    mean, var = (x.mean(axis=(1, 3), dtype=np.float64), x.var(axis=(1, 3), dtype=np.float64))
    mean_NG[...], inverse_NG[...] = mean, 1 / np.sqrt(var + eps)
    xhat = (x - mean[:, None, :, None]) / np.sqrt(var + eps)[:, None, :, None]
    y_NSC[...] = gamma_C * xhat.reshape(x_NSC.shape) + beta_C


def group_norm_back(x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate=False):
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
