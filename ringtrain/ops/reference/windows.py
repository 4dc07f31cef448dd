"""Windows as the rows of a matrix, and back: each kernel element is one strided view. Larger images: each axis is a
product with a small matrix, whose rows have the shares of the pixels."""

import numpy as np


def columns(x, columns, geometry, group=0):
    axes, depth = x.ndim - 2, x.shape[-1] // geometry.groups
    padded = pad_axes(x[..., group * depth : (group + 1) * depth], geometry.pad)
    out = _outputs(x, geometry)
    windows = columns.reshape(len(x), *out, geometry.kernel**axes, depth)
    for number, tap in enumerate(np.ndindex(*[geometry.kernel] * axes)):
        windows[..., number, :] = padded[seen_by(tap, out, geometry)]


def columns_back(columns, b_C, x, geometry, group=0, relu=False):
    axes, depth = x.ndim - 2, x.shape[-1] // geometry.groups
    padded = pad_axes(np.zeros((*x.shape[:-1], depth), x.dtype), geometry.pad)
    out = _outputs(x, geometry)
    windows = columns.reshape(len(x), *out, geometry.kernel**axes, depth)
    for number, tap in enumerate(np.ndindex(*[geometry.kernel] * axes)):
        padded[seen_by(tap, out, geometry)] += windows[..., number, :]
    inside = (slice(None), *(slice(geometry.pad, geometry.pad + extent) for extent in x.shape[1:-1]))
    total = padded[inside] if b_C is None else padded[inside] + b_C
    x[..., group * depth : (group + 1) * depth] = np.maximum(total, 0) if relu else total


def _outputs(x, geometry):
    return [geometry.output(extent) for extent in x.shape[1:-1]]


def pad_axes(x, pad):
    """Return x [N, ..., C] with zeros around its spatial axes."""
    return np.pad(x, ((0, 0), *[(pad, pad)] * (x.ndim - 2), (0, 0)))


def seen_by(tap, out, geometry):
    """Return the slices of a padded array that kernel element ``tap`` of all windows sees."""
    stride = geometry.stride
    return (slice(None), *(slice(at, at + (n - 1) * stride + 1, stride) for at, n in zip(tap, out, strict=True)))


def upsample(x_NHWC, y_NPQC, bilinear=False):
    down, along = _axes(x_NHWC, y_NPQC, bilinear)
    y_NPQC[...] = np.einsum("ph,nhwc,qw->npqc", down, x_NHWC, along, optimize=True)


def upsample_back(dy_NPQC, dx_NHWC, bilinear=False):
    down, along = _axes(dx_NHWC, dy_NPQC, bilinear)
    dx_NHWC[...] = np.einsum("ph,npqc,qw->nhwc", down, dy_NPQC, along, optimize=True)


def _axes(x, y, bilinear):
    return [_shares(x.shape[axis], y.shape[axis], bilinear).astype(x.dtype) for axis in (1, 2)]


def _shares(count, larger, bilinear):
    """Return [larger, count]: the share of each of ``count`` pixels in each pixel of the larger image."""
    scale, places = larger // count, np.arange(larger)
    shares = np.zeros((larger, count))
    if not bilinear:
        shares[places, places // scale] = 1
        return shares
    centres = np.maximum((places + 0.5) / scale - 0.5, 0)
    before = centres.astype(int)
    np.add.at(shares, (places, before), 1 - (centres - before))
    np.add.at(shares, (places, np.minimum(before + 1, count - 1)), centres - before)
    return shares
