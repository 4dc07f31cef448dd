"""The interface of an array, of a host or of a device: NumPy's, as far as the package relies on it."""

from typing import Any, Protocol

import numpy as np


class Array(Protocol):
    """Elements of one type. Slices of the leading axis and reshaped arrays are views."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def size(self) -> int: ...

    def __getitem__(self, index: Any, /) -> "Array": ...

    def reshape(self, shape: Any, /) -> "Array": ...


def array_address(array: np.ndarray) -> int:
    """Return the address of the first element."""
    return array.__array_interface__["data"][0]
