"""Arrays of NumPy and of compiled kernels are counted. tests/mpi shows that a steady iteration allocates none."""

import sys

import numba
import numpy as np

from ringtrain.ops.cpu.kernels import jit
from tests.allocations import LEAST_BYTES, counted


@numba.njit
def makes_two(x, y):
    lanes, more = np.zeros(64), np.empty(3)
    more[0] = lanes[5] + x[0] + y[0]
    return more[0]


@numba.njit
def makes_none(x, y):
    return x[0] + y[0]


def test_arrays_of_numpy_and_of_kernels_are_counted(monkeypatch):
    """The handles that numba makes for arguments are none."""
    monkeypatch.setattr(jit, "_kernels", [makes_two, makes_none])
    own, x = sys.modules[__name__], np.ones(100)
    kernels = own.makes_two, own.makes_none
    assert own.makes_two(x, x) == own.makes_none(x, x) == 2.0  # compiled
    with counted() as count:
        np.empty(LEAST_BYTES - 1, np.uint8)
        held = [np.zeros(1000), np.empty(LEAST_BYTES, np.uint8)]
        for _ in range(3):
            own.makes_two(x, x[3:])
            own.makes_none(x, x)
    assert count.sizes == [8000, LEAST_BYTES] and dict(count.kernels) == {"makes_two": 6} and count.arrays == 8
    assert (own.makes_two, own.makes_none) == kernels
    held.append(np.zeros(1000))
    own.makes_two(x, x)
    assert count.arrays == 8
