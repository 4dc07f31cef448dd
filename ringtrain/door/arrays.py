"""Whose array it is: the one place that knows which libraries there are. None of them is imported here."""

import numpy as np

from ringtrain.door import of_cupy, of_dlpack, of_jax, of_numpy, of_torch, texts
from ringtrain.door.loan import Loan, article
from ringtrain.errors import UsageError

BY_LIBRARY = {"torch": of_torch.lend, "cupy": of_cupy.lend, "jax": of_jax.lend, "jaxlib": of_jax.lend}


def lend(array) -> Loan:
    """The array as the host sees it. Raises UsageError for what is no array."""
    if isinstance(array, np.ndarray):
        return of_numpy.lend(array)
    if isinstance(array, np.generic):
        return of_numpy.lend_scalar(array)
    for kind in type(array).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in BY_LIBRARY:
            return BY_LIBRARY[library](array)
        if "__dlpack__" in vars(kind):
            return of_dlpack.lend(array)
    raise UsageError(texts.NOT_AN_ARRAY(thing=article(array)))
