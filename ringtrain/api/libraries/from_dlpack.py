"""Arrays of any other library that speaks DLPack, in host memory. Results are NumPy's."""

import numpy as np

from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray, article, unreadable
from ringtrain.errors import UsageError

CPU = 1  # kDLCPU among DLPack's kinds of devices


def lend(array) -> BorrowedArray:
    """Return the array's own memory.

    Raises UsageError if it lies on a device, or cannot be read.
    Source: the Python specification of DLPack, data-apis.org/array-api.
    """
    kind, index = array.__dlpack_device__()
    if kind != CPU:
        raise UsageError(texts.ON_DEVICE(thing=article(array), kind=int(kind), index=index))
    try:
        host = np.from_dlpack(array)
    except (TypeError, RuntimeError, BufferError) as error:
        raise unreadable(array, error, texts.AS_NUMPY) from error
    return BorrowedArray(host, host.dtype.name, lambda fresh: fresh)
