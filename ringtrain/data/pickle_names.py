"""What a pickle of plain values may name: the words by which NumPy's arrays are put together, and for each of them one
function here, which does no more than that."""

from dataclasses import dataclass

import numpy as np


class Refused(Exception):
    """A pickle that wants more than plain values."""


@dataclass(slots=True)
class Shell:
    """What an array is unpickled into: it takes the array's state, checks it, makes the array."""

    array: np.ndarray | None = None

    def set_state(self, state) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, Type) or not isinstance(data, bytes):
            raise Refused("an array of something other than bytes")
        values = np.frombuffer(data, dtype.dtype)
        self.array = values.reshape(shape, order="F" if fortran else "C")


CODES = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})


class Type:
    """What a dtype is unpickled into: only whole numbers and floating point, in either byte order."""

    def __init__(self, code, *_):
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in CODES:
            raise Refused(f"an array of type {code!r}")
        self.dtype = np.dtype(code)

    def set_state(self, state) -> None:
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")


def _reconstruct(*_):
    return Shell()


def _from_buffer(data, dtype, shape, order, axis_order=None):
    # What protocol 5 writes in place of _reconstruct and a state.
    if axis_order is not None or order not in ("C", "F"):
        raise Refused(f"an array in the order {order!r}")
    shell = Shell()
    shell.set_state((1, shape, dtype, order == "F", data))
    return shell


def _encode(text, encoding="latin1"):
    # Protocol 2 writes bytes as text in latin1.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("bytes in an unexpected encoding")
    return text.encode("latin1")


def _bytes(*nothing):
    # Protocol 2 writes no bytes at all as what bytes() makes.
    if nothing:
        raise Refused("bytes made in an unexpected way")
    return b""


def _ndarray(*_):
    raise Refused("an array built in an unexpected way")


@dataclass(frozen=True, slots=True)
class Name:
    """What a pickle may name; it can be called, and nothing else."""

    module: str
    word: str

    def call(self, arguments: tuple):
        return CALLED[self.module, self.word](*arguments)


CALLED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _ndarray,  # named as an argument of _reconstruct, never called
    ("numpy", "dtype"): Type,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _bytes,
}
