"""Dispatch of an array to its library. None of the libraries is imported here."""

import numpy as np

from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray, article
from ringtrain.api.libraries import from_cupy, from_dlpack, from_jax, from_numpy, from_torch
from ringtrain.errors import UsageError

BY_LIBRARY = {"torch": from_torch.lend, "cupy": from_cupy.lend, "jax": from_jax.lend, "jaxlib": from_jax.lend}


def lend(array) -> BorrowedArray:
    """Return the array as host memory. Raises UsageError for objects that are no arrays."""
    if isinstance(array, np.ndarray):
        return from_numpy.lend(array)
    if isinstance(array, np.generic):
        return from_numpy.lend_scalar(array)
    for kind in type(array).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in BY_LIBRARY:
            return BY_LIBRARY[library](array)
        if "__dlpack__" in vars(kind):
            return from_dlpack.lend(array)
    raise UsageError(texts.NOT_AN_ARRAY(thing=article(array)))
