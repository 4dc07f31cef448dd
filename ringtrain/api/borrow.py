"""An array of whatever library, as the host sees it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.api import texts
from ringtrain.errors import UsageError


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class BorrowedArray:
    """host:   the elements, in the array's shape, with any strides: its own memory where the host can reach it, else a
            copy. bfloat16 is there as uint16, since NumPy has no such type
    dtype:  the elements' type by its name
    like:   like(host) → an array of the same library and type, on the same device, that takes over a fresh ``host``
    settle: brings what was written into ``host`` to where the array lies
    """

    host: np.ndarray
    dtype: str
    like: Callable[[np.ndarray], object]
    settle: Callable[[], None] = _nothing


def unreadable(array, error: Exception, advice: str) -> UsageError:
    """What to tell where a library refuses to show its array's elements."""
    reason = str(error).splitlines()[0]
    return UsageError(texts.UNREADABLE(thing=article(array), reason=reason, advice=advice))


def article(array) -> str:
    """ "a torch.Tensor"."""
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
