"""Pooling as a loop over the elements of the window, each one strided view of what lies inside the image."""

import math

import numpy as np


def max_pool(x_NHWC, y_NPQC, where_NPQC, geometry):
    y_NPQC[...] = 0
    where_NPQC[...] = 0
    seen = np.zeros(y_NPQC.shape, bool)
    for element, inside, outside in _taps(x_NHWC.shape, y_NPQC.shape, geometry):
        x, y = x_NHWC[inside], y_NPQC[outside]
        better = ~seen[outside] | (x > y) | (np.isnan(x) & ~np.isnan(y))
        where_NPQC[outside][better] = element
        y[better] = x[better]
        seen[outside] = True


def max_pool_back(dy_NPQC, where_NPQC, dx_NHWC, geometry):
    dx_NHWC[...] = 0
    for element, inside, outside in _taps(dx_NHWC.shape, dy_NPQC.shape, geometry):
        dx_NHWC[inside] += np.where(where_NPQC[outside] == element, dy_NPQC[outside], 0)


def avg_pool(x_NHWC, y_NPQC, geometry):
    y_NPQC[...] = 0
    for _, inside, outside in _taps(x_NHWC.shape, y_NPQC.shape, geometry):
        y_NPQC[outside] += x_NHWC[inside]
    y_NPQC /= _divisors(x_NHWC.shape, y_NPQC.shape, geometry).astype(y_NPQC.dtype)


def avg_pool_back(dy_NPQC, dx_NHWC, geometry):
    dx_NHWC[...] = 0
    share = dy_NPQC / _divisors(dx_NHWC.shape, dy_NPQC.shape, geometry).astype(dy_NPQC.dtype)
    for _, inside, outside in _taps(dx_NHWC.shape, dy_NPQC.shape, geometry):
        dx_NHWC[inside] += share[outside]


def global_avg_pool(x_NHWC, y_NC):
    np.mean(x_NHWC, axis=tuple(range(1, x_NHWC.ndim - 1)), out=y_NC)


def global_avg_pool_back(dy_NC, dx_NHWC):
    pixels = math.prod(dx_NHWC.shape[1:-1])
    dx_NHWC.reshape(len(dy_NC), pixels, dy_NC.shape[1])[...] = (dy_NC / dy_NC.dtype.type(pixels))[:, None, :]


def _taps(in_shape, out_shape, geometry):
    """(element of the window, slices of the image, slices of the output) where that element is inside."""
    for r, s in np.ndindex(geometry.kernel, geometry.kernel):
        rows_in, rows_out = _line(r, in_shape[1], out_shape[1], geometry)
        columns_in, columns_out = _line(s, in_shape[2], out_shape[2], geometry)
        yield r * geometry.kernel + s, np.s_[:, rows_in, columns_in], np.s_[:, rows_out, columns_out]


def _line(tap, size, count, geometry):
    """Along one axis: which pixels, and which windows, meet at this element of the window."""
    stride = geometry.stride
    first = max(0, -((tap - geometry.pad) // stride))
    last = max(first, min(count, (size - 1 - tap + geometry.pad) // stride + 1))
    start = first * stride + tap - geometry.pad
    return slice(start, start + (last - first) * stride, stride), slice(first, last)


def _divisors(in_shape, out_shape, geometry):
    """Elements of each window, padding included, but not what lies beyond it. Shape: [P, Q, 1]."""
    heights = _extents(in_shape[1], out_shape[1], geometry)
    widths = _extents(in_shape[2], out_shape[2], geometry)
    return (heights[:, None] * widths[None, :])[:, :, None]


def _extents(size, count, geometry):
    starts = np.arange(count) * geometry.stride - geometry.pad
    return np.minimum(starts + geometry.kernel, size + geometry.pad) - starts
