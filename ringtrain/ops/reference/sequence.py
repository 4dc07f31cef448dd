"""Embedding and attention."""

import math

import numpy as np


def embedding(x_NL, w_VD, y_NLD):
    known_NL = _known(x_NL, len(w_VD))
    y_NLD[...] = np.nan
    y_NLD[known_NL] = w_VD[x_NL[known_NL].astype(np.int64)]


def embedding_back(x_NL, dy_NLD, dw_VD, accumulate=False):
    if not accumulate:
        dw_VD[...] = 0
    known_NL = _known(x_NL, len(dw_VD))
    np.add.at(dw_VD, x_NL[known_NL].astype(np.int64), dy_NLD[known_NL])


def _known(x_NL, entries):
    """Return which numbers are numbers of entries."""
    return (x_NL >= 0) & (x_NL < entries) & (x_NL == np.floor(x_NL))


def add_bias(x_ND, b_D, y_ND):
    np.add(x_ND, b_D, out=y_ND)


def attention(x_NLE, y_NLD, y_NHLL, causal=False):
    q, k, v = _heads(x_NLE, y_NHLL.shape[1])
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    if causal:
        scores[..., *np.triu_indices(scores.shape[2], 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=3, keepdims=True))
    y_NHLL[...] = shares / shares.sum(axis=3, keepdims=True)
    y_NLD[...] = (y_NHLL @ v).swapaxes(1, 2).reshape(y_NLD.shape)


def attention_back(x_NLE, y_NHLL, dy_NLD, dx_NLE):
    n, heads, length, _ = y_NHLL.shape
    q, k, v = _heads(x_NLE, heads)
    dy = dy_NLD.reshape(n, length, heads, q.shape[3]).swapaxes(1, 2)
    dp = dy @ v.swapaxes(2, 3)
    ds = y_NHLL * (dp - (y_NHLL * dp).sum(axis=3, keepdims=True)) / math.sqrt(q.shape[3])
    gradients = ds @ k, ds.swapaxes(2, 3) @ q, y_NHLL.swapaxes(2, 3) @ dy
    dx_NLE[...] = np.concatenate([each.swapaxes(1, 2).reshape(dy_NLD.shape) for each in gradients], axis=2)


def _heads(x_NLE, heads):
    """Return queries, keys and values, each [N, H, L, D/H]."""
    n, length, width = x_NLE.shape
    return x_NLE.reshape(n, length, 3, heads, width // 3 // heads).transpose(2, 0, 3, 1, 4)
