"""The types and operations that can be all-reduced on the host, and their rounding."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.ops import bfloat16

UFUNCS = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
OPS = tuple(UFUNCS)
MEAN = "mean"


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type of numbers."""

    name: str  # name for users
    storage: np.dtype  # NumPy's type of the elements in memory
    roundoff: float  # u, the largest relative error of one rounding; 0 for integers
    whole: int  # up to here every integer has an exact value
    least: float = 0  # the smallest number above 0, the spacing of the numbers near 0; 0 for integers

    @property
    def integral(self) -> bool:
        return self.roundoff == 0

    @property
    def itemsize(self) -> int:
        return self.storage.itemsize

    def encode(self, x) -> np.ndarray:
        """Return ``x`` in this type, rounded if necessary."""
        if self.name == "bfloat16":
            return bfloat16.encode(x)
        return np.asarray(x).astype(self.storage)

    def decode(self, stored) -> np.ndarray:
        """Return the stored numbers in a NumPy type that holds them exactly."""
        return bfloat16.decode(stored) if self.name == "bfloat16" else stored

    def combine(self, op: str) -> Callable:
        """Return (a, b, y): y = a op b. The mean is a sum that :meth:`divide` finishes."""
        ufunc = UFUNCS[op]
        if self.name == "bfloat16":
            return lambda a, b, y: np.copyto(y, bfloat16.encode(ufunc(bfloat16.decode(a), bfloat16.decode(b))))
        return lambda a, b, y: ufunc(a, b, out=y)

    def shares(self, stored, count: int) -> np.ndarray:
        """Return the stored numbers over ``count``, in float32: of 16-bit numbers."""
        return np.divide(self.decode(stored), np.float32(count), dtype=np.float32)

    def divide(self, span, count: int) -> None:
        """Compute span /= count, rounded once."""
        if self.name == "bfloat16":
            span[...] = bfloat16.encode(bfloat16.decode(span) / np.float32(count))
        else:
            np.divide(span, self.storage.type(count), out=span)


def reduction_of(op: str) -> str:
    """Return the operation in the MPI's terms: a mean is a sum that is divided afterwards."""
    return "sum" if op == MEAN else op


TYPES = {
    kind.name: kind
    for kind in (
        NumberType("float16", np.dtype(np.float16), 2.0**-11, 1 << 11, 2.0**-24),
        NumberType("bfloat16", np.dtype(np.uint16), 2.0**-8, 1 << 8, 2.0**-133),
        NumberType("float32", np.dtype(np.float32), 2.0**-24, 1 << 24, 2.0**-149),
        NumberType("float64", np.dtype(np.float64), 2.0**-53, 1 << 53, 2.0**-1074),
        NumberType("int32", np.dtype(np.int32), 0, (1 << 31) - 1),
        NumberType("int64", np.dtype(np.int64), 0, (1 << 63) - 1),
    )
}
