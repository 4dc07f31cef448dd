"""Arrays and scalars of NumPy; ml_dtypes' bfloat16 among their types."""

from functools import lru_cache

import numpy as np

from ringtrain.api.borrow import BorrowedArray


def lend(array: np.ndarray) -> BorrowedArray:
    """Return an array's own memory."""
    dtype = array.dtype
    name = _name(dtype)
    if name == "bfloat16":
        return BorrowedArray(array.view(np.uint16), name, lambda host: host.view(dtype))
    return BorrowedArray(array, name, _itself)


@lru_cache(maxsize=256)
def _name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy composes it anew each time, which takes longer than a small message


def _itself(host: np.ndarray) -> np.ndarray:
    return host


def lend_scalar(scalar: np.generic) -> BorrowedArray:
    """Return a read-only copy: a scalar has no memory of its own."""
    copy = np.array(scalar)
    copy.flags.writeable = False
    loan = lend(copy)
    return BorrowedArray(loan.host, loan.dtype, lambda host: loan.like(host)[()])
