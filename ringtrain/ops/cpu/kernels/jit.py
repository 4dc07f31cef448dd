"""Compilation of kernels, and a count of them.

Without fast-math: what is added to what is as the source has it, at any width of vectors. So an element has the same
bits wherever in an array it lies, and a sum has those of its order, which kernels write down: lanes of their own where
one sum after another would be slow.
"""

from typing import Any

import numba
import numpy as np

OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
}

u = np.uint64

_kernels: list = []


def kernel(function):
    """Compile on first use for each combination of array types, and keep the result on disk."""
    compiled = numba.njit(**OPTIONS)(function)
    _kernels.append(compiled)
    return compiled


def fused(function):
    """As :func:`kernel`, but a product that is added to something may be rounded with the sum, once."""
    compiled = numba.njit(fastmath={"contract"}, **OPTIONS)(function)
    _kernels.append(compiled)
    return compiled


def inlined(function):
    """A part of kernels that is called too often to be a call."""
    return numba.njit(forceinline=True, **OPTIONS)(function)


def kernels() -> tuple:
    """All of the files that have been imported."""
    return tuple(_kernels)


def compile_stats() -> tuple[int, int]:
    """(kernels compiled anew, kernels loaded from the disk cache) in this process."""
    compiled = sum(sum(k.stats.cache_misses.values()) for k in _kernels)
    loaded = sum(sum(k.stats.cache_hits.values()) for k in _kernels)
    return compiled, loaded
