"""Larger images: each axis is a product with a small matrix, whose rows have the shares of the pixels."""

import numpy as np


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
