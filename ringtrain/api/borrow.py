"""A borrowed array: an array of any library, as host memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain.errors import UsageError


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class BorrowedArray:
    """An array of any library, borrowed as host memory.

    host:   the elements, in the array's shape, with any strides: its own memory if the host can reach it, else a copy.
            bfloat16 has type uint16 there, since NumPy has no such type
    dtype:  name of the elements' type
    like:   like(host) → a new array of the same library and type, on the same device, that takes over ``host``
    settle: copies ``host`` back into the array, if it is a copy
    """

    host: np.ndarray
    dtype: str
    like: Callable[[np.ndarray], Any]
    settle: Callable[[], None] = _nothing


def unreadable(array, error: Exception, advice: str) -> UsageError:
    """Return the error of a library that refuses access to its array's elements."""
    reason = str(error).splitlines()[0]
    return UsageError(f"the elements of {article(array)} cannot be read ({reason}): {advice}")


def article(array) -> str:
    """Return the type of an array with an article: "a torch.Tensor"."""
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
