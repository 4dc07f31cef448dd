"""Arrays of NumPy are counted. tests/mpi shows that a steady iteration allocates none."""

import numpy as np

from tests.allocations import LEAST_BYTES, counted


def test_arrays_of_numpy_are_counted():
    with counted() as sizes:
        np.empty(LEAST_BYTES - 1, np.uint8)
        arrays = [np.zeros(1000), np.empty(LEAST_BYTES, np.uint8)]
    assert sizes == [8000, LEAST_BYTES]
    arrays.append(np.zeros(1000))
    assert len(sizes) == 2
