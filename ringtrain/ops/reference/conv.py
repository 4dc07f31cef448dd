"""Convolution as a sum over kernel elements: each is one matrix product of a strided view."""

import numpy as np

from ringtrain.ops.reference.simple import bias_gradient, mask, put
from ringtrain.ops.reference.windows import pad_axes, seen_by


def conv2d(x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False):
    padded, out = pad_axes(x_NHWC, geometry.pad), y_NPQK.shape[1:3]
    y_NPQK[...] = 0 if b_K is None else b_K
    for r, s, group in _taps(geometry):
        channels, features = _slices(group, w_RSCK, geometry)
        window = padded[seen_by((r, s), out, geometry)]
        y_NPQK[..., features] += window[..., channels] @ w_RSCK[r, s, :, features]
    if relu:
        np.maximum(y_NPQK, 0, out=y_NPQK)


def conv2d_back(x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate):
    dy_NPQK = mask(dy_NPQK, y_NPQK, relu)
    bias_gradient(dy_NPQK, db_K, accumulate)
    padded, out = pad_axes(x_NHWC, geometry.pad), y_NPQK.shape[1:3]
    dpadded = np.zeros_like(padded)
    dw = np.zeros_like(dw_RSCK)
    for r, s, group in _taps(geometry):
        channels, features = _slices(group, w_RSCK, geometry)
        window = padded[seen_by((r, s), out, geometry)][..., channels]
        dwindow = dpadded[seen_by((r, s), out, geometry)][..., channels]
        dw[r, s, :, features] = np.tensordot(window, dy_NPQK[..., features], axes=([0, 1, 2], [0, 1, 2]))
        dwindow += dy_NPQK[..., features] @ w_RSCK[r, s, :, features].T
    put(dw, dw_RSCK, accumulate)
    if dx_NHWC is not None:
        pad, (_, h, w, _) = geometry.pad, x_NHWC.shape
        dx_NHWC[...] = dpadded[:, pad : pad + h, pad : pad + w]


def _taps(geometry):
    return np.ndindex(geometry.kernel, geometry.kernel, geometry.groups)


def _slices(group, w_RSCK, geometry):
    """The channels in, and the features out, of one group."""
    c, k = w_RSCK.shape[2], w_RSCK.shape[3] // geometry.groups
    return slice(group * c, (group + 1) * c), slice(group * k, (group + 1) * k)


def depthwise_line(x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
    padded = pad_axes(x_NLC, geometry.pad)
    y_NPC[...] = 0 if b_C is None else b_C
    for s, weight_C in enumerate(w_SC):
        y_NPC += padded[seen_by((s,), y_NPC.shape[1:2], geometry)] * weight_C
    if relu:
        np.maximum(y_NPC, 0, out=y_NPC)


def depthwise_line_back(x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False):
    dy_NPC = mask(dy_NPC, y_NPC, relu)
    bias_gradient(dy_NPC, db_C, accumulate)
    padded = pad_axes(x_NLC, geometry.pad)
    dpadded, dw = np.zeros_like(padded), np.zeros_like(w_SC)
    for s, weight_C in enumerate(w_SC):
        seen = seen_by((s,), y_NPC.shape[1:2], geometry)
        dw[s] = (padded[seen] * dy_NPC).sum(axis=(0, 1), dtype=np.float64)
        dpadded[seen] += dy_NPC * weight_C
    put(dw, dw_SC, accumulate)
    if dx_NLC is not None:
        dx_NLC[...] = dpadded[:, geometry.pad : geometry.pad + x_NLC.shape[1]]
