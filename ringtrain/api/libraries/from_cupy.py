"""Arrays of CuPy, by way of the host: one copy to it, and one copy back."""

import sys

from ringtrain.api.borrow import BorrowedArray
from ringtrain.api.libraries import from_numpy


def lend(array) -> BorrowedArray:
    """Return a copy of the device's memory."""
    cupy = sys.modules["cupy"]  # it has made the array
    device, host = array.device, array.get()
    loan = from_numpy.lend(host)

    def upload(fresh):
        with device:
            return cupy.asarray(fresh)

    def settle() -> None:
        with device:
            array[...] = cupy.asarray(host)  # unlike set(), for any strides

    return BorrowedArray(loan.host, loan.dtype, lambda fresh: upload(loan.like(fresh)), settle)
