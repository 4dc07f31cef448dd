"""Windows as the rows of a matrix, and back: each kernel element is one strided view."""

import numpy as np


def columns(x, columns, geometry, group=0):
    axes, depth = x.ndim - 2, x.shape[-1] // geometry.groups
    padded = _pad(x[..., group * depth : (group + 1) * depth], geometry.pad)
    out = _outputs(x, geometry)
    windows = columns.reshape(len(x), *out, geometry.kernel**axes, depth)
    for number, tap in enumerate(np.ndindex(*[geometry.kernel] * axes)):
        windows[..., number, :] = padded[_met(tap, out, geometry)]


def columns_back(columns, b_C, x, geometry, group=0, relu=False):
    axes, depth = x.ndim - 2, x.shape[-1] // geometry.groups
    padded = _pad(np.zeros((*x.shape[:-1], depth), x.dtype), geometry.pad)
    out = _outputs(x, geometry)
    windows = columns.reshape(len(x), *out, geometry.kernel**axes, depth)
    for number, tap in enumerate(np.ndindex(*[geometry.kernel] * axes)):
        padded[_met(tap, out, geometry)] += windows[..., number, :]
    inside = (slice(None), *(slice(geometry.pad, geometry.pad + extent) for extent in x.shape[1:-1]))
    total = padded[inside] if b_C is None else padded[inside] + b_C
    x[..., group * depth : (group + 1) * depth] = np.maximum(total, 0) if relu else total


def _outputs(x, geometry):
    return [geometry.output(extent) for extent in x.shape[1:-1]]


def _pad(x, pad):
    return np.pad(x, ((0, 0), *[(pad, pad)] * (x.ndim - 2), (0, 0)))


def _met(tap, out, geometry):
    """What kernel element ``tap`` of all windows meets in a padded array."""
    stride = geometry.stride
    return (slice(None), *(slice(at, at + (n - 1) * stride + 1, stride) for at, n in zip(tap, out, strict=True)))
