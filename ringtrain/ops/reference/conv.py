"""Convolution as a sum over kernel elements: each is one matrix product of a strided view."""

import numpy as np

from ringtrain.ops.reference.simple import bias_gradient, mask, put


def conv2d(x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False):
    padded = _pad(x_NHWC, geometry.pad)
    y_NPQK[...] = 0 if b_K is None else b_K
    for r, s, group in _taps(geometry):
        channels, features = _slices(group, w_RSCK, geometry)
        window = _window(padded, r, s, y_NPQK.shape, geometry)
        y_NPQK[..., features] += window[..., channels] @ w_RSCK[r, s, :, features]
    if relu:
        np.maximum(y_NPQK, 0, out=y_NPQK)


def conv2d_back(x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate):
    dy_NPQK = mask(dy_NPQK, y_NPQK, relu)
    bias_gradient(dy_NPQK, db_K, accumulate)
    padded = _pad(x_NHWC, geometry.pad)
    dpadded = np.zeros_like(padded)
    dw = np.zeros_like(dw_RSCK)
    for r, s, group in _taps(geometry):
        channels, features = _slices(group, w_RSCK, geometry)
        window = _window(padded, r, s, y_NPQK.shape, geometry)[..., channels]
        dwindow = _window(dpadded, r, s, y_NPQK.shape, geometry)[..., channels]
        dw[r, s, :, features] = np.tensordot(window, dy_NPQK[..., features], axes=([0, 1, 2], [0, 1, 2]))
        dwindow += dy_NPQK[..., features] @ w_RSCK[r, s, :, features].T
    put(dw, dw_RSCK, accumulate)
    if dx_NHWC is not None:
        pad, (_, h, w, _) = geometry.pad, x_NHWC.shape
        dx_NHWC[...] = dpadded[:, pad : pad + h, pad : pad + w]


def _pad(x_NHWC, pad):
    return np.pad(x_NHWC, ((0, 0), (pad, pad), (pad, pad), (0, 0)))


def _taps(geometry):
    return np.ndindex(geometry.kernel, geometry.kernel, geometry.groups)


def _slices(group, w_RSCK, geometry):
    """The channels in, and the features out, of one group."""
    c, k = w_RSCK.shape[2], w_RSCK.shape[3] // geometry.groups
    return slice(group * c, (group + 1) * c), slice(group * k, (group + 1) * k)


def _window(padded, r, s, out_shape, geometry):
    """The view of the padded image that kernel element (r, s) sees, of P × Q pixels."""
    _, p, q, _ = out_shape
    stride = geometry.stride
    return padded[:, r : r + (p - 1) * stride + 1 : stride, s : s + (q - 1) * stride + 1 : stride]


def depthwise_line(x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
    padded = _pad_line(x_NLC, geometry)
    y_NPC[...] = 0 if b_C is None else b_C
    for s, weight_C in enumerate(w_SC):
        y_NPC += padded[:, _met(s, y_NPC, geometry)] * weight_C
    if relu:
        np.maximum(y_NPC, 0, out=y_NPC)


def depthwise_line_back(x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False):
    dy_NPC = mask(dy_NPC, y_NPC, relu)
    bias_gradient(dy_NPC, db_C, accumulate)
    padded = _pad_line(x_NLC, geometry)
    dpadded, dw = np.zeros_like(padded), np.zeros_like(w_SC)
    for s, weight_C in enumerate(w_SC):
        met = _met(s, y_NPC, geometry)
        dw[s] = (padded[:, met] * dy_NPC).sum(axis=(0, 1), dtype=np.float64)
        dpadded[:, met] += dy_NPC * weight_C
    put(dw, dw_SC, accumulate)
    if dx_NLC is not None:
        dx_NLC[...] = dpadded[:, geometry.pad : geometry.pad + x_NLC.shape[1]]


def _pad_line(x_NLC, geometry):
    return np.pad(x_NLC, ((0, 0), (geometry.pad, geometry.pad), (0, 0)))


def _met(s, y_NPC, geometry):
    """The places of a padded line that tap ``s`` of all windows meets."""
    return slice(s, s + (y_NPC.shape[1] - 1) * geometry.stride + 1, geometry.stride)
