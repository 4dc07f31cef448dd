"""Reading a pickle that holds only plain values and NumPy arrays, without letting it run anything.

A pickle is a program: by naming any importable function it can run any code. Here the only names that it may
use are those by which NumPy's arrays are put together, and each of those stands for a function of ours that
can do nothing else. A pickle that names anything else is refused at that name.
"""

import io
import pickle
import pickletools

import numpy as np

from ringtrain.errors import DataError


class _Shell:
    """What an array is unpickled into: it takes the array's state, checks it, makes the array."""

    def __init__(self):
        self.array = None

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Type) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array of something other than bytes")
        values = np.frombuffer(data, dtype.dtype)
        self.array = values.reshape(shape, order="F" if fortran else "C")


class _Type:
    """What a dtype is unpickled into: only whole numbers and floating point, in either byte order."""

    def __init__(self, code, *_):
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in CODES:
            raise pickle.UnpicklingError(f"an array of type {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        if state[1] == ">" or state[1] == b">":
            self.dtype = self.dtype.newbyteorder(">")


CODES = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})


def _reconstruct(*_):
    return _Shell()


def _from_buffer(data, dtype, shape, order, axis_order=None):
    # What protocol 5 writes in place of _reconstruct and a state.
    if axis_order is not None or order not in ("C", "F"):
        raise pickle.UnpicklingError(f"an array in the order {order!r}")
    shell = _Shell()
    shell.__setstate__((1, shape, dtype, order == "F", bytes(data)))
    return shell


def _encode(text, encoding="latin1"):
    # Protocol 2 writes bytes as text in latin1.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes in an unexpected encoding")
    return text.encode("latin1")


def _ndarray(*_):
    raise pickle.UnpicklingError("an array built in an unexpected way")


class _Maker:
    """What a name in a pickle stands for: it can be called, and not be altered (a pickle may give state to
    anything)."""

    def __init__(self, make):
        self._make = make

    def __call__(self, *args):
        return self._make(*args)

    def __setstate__(self, state):
        raise pickle.UnpicklingError("it wants to alter a function")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Maker(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Maker(_reconstruct),
    ("numpy.core.numeric", "_frombuffer"): _Maker(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Maker(_from_buffer),
    ("numpy", "ndarray"): _Maker(_ndarray),  # named as an argument of _reconstruct, never called
    ("numpy", "dtype"): _Maker(_Type),
    ("_codecs", "encode"): _Maker(_encode),
}
DEEPEST = 8  # lists within lists: a pickle can hold a list that holds itself
MOST_VALUES = 1 << 20  # and one list a million times, which holds another a million times


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}")
        return ALLOWED[module, name]

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it refers to an object outside of it")


def load_plain(data: bytes, where: str):
    """The value in ``data``: dictionaries, lists, texts, bytes, numbers, and NumPy arrays of numbers. Texts
    of Python 2 come as bytes.

    Raises: DataError naming ``where``, for anything else.
    """
    try:
        _check_places(data)
        return _unwrap(_Reader(io.BytesIO(data), encoding="bytes").load(), [MOST_VALUES])
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{where} is refused: a pickle of plain values and arrays is wanted, but {error}; "
            "nothing that it names was run"
        ) from error
    except Exception as error:  # a broken pickle fails in as many ways as there are opcodes
        raise DataError(f"{where} is truncated or not a pickle: {type(error).__name__}: {error}") from error


def _check_places(data: bytes) -> None:
    """A pickle numbers what it refers to again, and Python makes room up to the highest number, whatever that is."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and argument > len(data):
            raise pickle.UnpicklingError(f"it counts to {argument} in {len(data)} bytes")


def _unwrap(value, left: list[int], depth: int = 0):
    """``left``: how many values more it may have"""
    if depth > DEEPEST:
        raise pickle.UnpicklingError(f"it has more than {DEEPEST} lists within lists")
    left[0] -= 1
    if left[0] < 0:
        raise pickle.UnpicklingError(f"it has more than {MOST_VALUES:,} values")
    if isinstance(value, _Shell):
        return value.array
    if isinstance(value, dict):
        return {_text(key): _unwrap(item, left, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unwrap(item, left, depth + 1) for item in value]
    return value


def _text(key):
    return key.decode("latin1") if isinstance(key, bytes) else key
