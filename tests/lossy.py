"""What a rank sends of an array by each lossy method, in plain NumPy: what simulations of exchanges compute with."""

import math

import numpy as np

BLOCK = 256


def levels(x, bits):
    """x in blocks, each rounded to its levels: signs of one magnitude, or of two, or evenly spaced levels."""
    return np.concatenate([_block(x[start : start + BLOCK], bits) for start in range(0, x.size, BLOCK)])


def _block(x, bits):
    sizes = np.abs(x)
    if bits > 2:
        top = 2 ** (bits - 1) - 1
        step = sizes.max() / top
        return np.rint(x / step) * step if step else x
    signs, edge = np.where(x < 0, -1.0, 1.0), sizes.mean()
    if bits == 1:
        return signs * edge
    for _ in range(3):
        above = sizes > edge
        low, high = (sizes[part].mean() if part.any() else 0.0 for part in (~above, above))
        edge, result = (low + high) / 2, signs * np.where(above, high, low)
    return result


def largest(x, ratio, chunk=0, bits=None):
    """The largest elements of x, or of each chunk, the first of equals; zeros elsewhere."""
    chunk, places = chunk or x.size, []
    k = math.ceil(ratio * chunk)
    for start in range(0, x.size, chunk):
        part = x[start : start + chunk]
        order = np.argsort(-np.abs(part), kind="stable")[: math.ceil(k * part.size / chunk)]
        places += sorted(start + order)
    sent = np.zeros_like(x)
    sent[places] = levels(x[places], bits) if bits else x[places]
    return sent
