"""Safe reading of pickles that hold a dictionary of plain values and NumPy arrays: CIFAR's python batches.

A pickle is a program of small instructions. Python's own interpreter runs those for plain values, of protocols 2 to 5,
and knows a few names, which put NumPy arrays together: nothing in a pickle runs. It is the one in Python, since the
one in C makes room for any number of values that a pickle claims to have.
"""

import pickle
from io import BytesIO
from typing import Any

import numpy as np

from ringtrain.errors import DataError

MOST = 1 << 22  # instructions
LONGEST_NAME = 256  # characters of a key
CODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINSTRING SHORT_BINSTRING "
    "BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_LIST APPEND APPENDS EMPTY_TUPLE "
    "TUPLE1 TUPLE2 TUPLE3 TUPLE SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL"
)


def load_plain(data: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary in ``data``, of lists, texts, bytes, numbers, and NumPy arrays of numbers; empty for any
    other value. Texts of Python 2 come as bytes.

    Raises: DataError naming ``where``, for anything else.
    """
    try:
        value = _Unpickler(data).load()
    except _NotAllowed as error:
        raise DataError(
            f"{where} is refused: it names {error}, and a pickle of plain values and NumPy arrays does not"
        ) from None
    except Exception as error:  # a broken pickle raises exceptions of any type
        raise DataError(
            f"{where} is no pickle of plain values and NumPy arrays: {type(error).__name__}: {error}; copy it again"
        ) from error
    return value if isinstance(value, _Dictionary) else {}


class _NotAllowed(Exception):
    """The pickle names what puts no array together."""


def _text(value: Any) -> str:
    """Return the text of a key or a name, which may be bytes."""
    if not isinstance(value, str | bytes) or len(value) > LONGEST_NAME:
        raise ValueError(f"it has a key or name that is no text of up to {LONGEST_NAME} characters")
    return value.decode("latin1") if isinstance(value, bytes) else value


class _Dtype:
    """The type of an array, until its state gives the order of bytes."""

    def __init__(self, code, *_):
        self._code, self._order = _text(code), ""

    def __setstate__(self, state):
        self._order = _text(state[1]).strip("|=")

    def array(self, data, shape, order: str) -> np.ndarray:
        dtype = np.dtype(self._order + self._code)
        if dtype.kind not in "biuf":
            raise ValueError(f"it has an array of type {dtype.str}")
        return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")


class _Array:
    """An array, whose values its state may give."""

    def __init__(self, values: np.ndarray | None = None):
        self.values = values

    def __setstate__(self, state):
        _, shape, dtype, columns_first, data = state
        self.values = dtype.array(data, shape, "F" if columns_first else "C")


class _Dictionary(dict):
    """Its keys are texts: the hash of a tuple can take any time."""

    def __setitem__(self, key, value):
        super().__setitem__(_text(key), value.values if isinstance(value, _Array) else value)


class _Instructions(dict):
    """What runs an instruction, by its byte; MOST are run."""

    left = MOST

    def __getitem__(self, code):
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it has more than {MOST:,} instructions")
        return super().__getitem__(code)


def _reduce(it) -> None:
    if type(it.stack[-1]) is not tuple or len(it.stack[-1]) > 5:  # what has no arguments is copied as them, in any time
        raise ValueError("it calls with what are no arguments")
    BASE[pickle.REDUCE[0]](it)


def _set_state(it) -> None:
    state = it.stack.pop()
    it.stack[-1].__setstate__(state)


BASE = pickle._Unpickler.dispatch
LOADERS: dict[int, Any] = {code: BASE[code] for code in (getattr(pickle, name)[0] for name in CODES.split())}
LOADERS |= {
    pickle.EMPTY_DICT[0]: lambda it: it.append(_Dictionary()),
    pickle.BYTEARRAY8[0]: BASE[pickle.BINBYTES8[0]],  # its own one makes room before it reads
    pickle.BUILD[0]: _set_state,
    pickle.REDUCE[0]: _reduce,
}


class _Unpickler(pickle._Unpickler):
    def __init__(self, data: bytes):
        super().__init__(BytesIO(data), encoding="bytes")
        self.left = len(data)  # bytes that texts may still become, each byte of the pickle once
        self.dispatch = _Instructions(LOADERS)  # type: ignore[misc]

    def find_class(self, module: str, name: str):
        match module.replace("numpy._core.", "numpy.core."), name:  # of NumPy 2 and 1
            case "numpy", "ndarray":
                return None  # an argument of _reconstruct
            case "numpy", "dtype":
                return _Dtype
            case "numpy.core.multiarray", "_reconstruct":
                return lambda *_: _Array()
            case "numpy.core.numeric", "_frombuffer":
                return lambda data, dtype, *how: _Array(dtype.array(data, *how))
            case "_codecs", "encode":  # protocol 2 writes bytes as text in latin1,
                return self._encode
            case "__builtin__", "bytes":  # and no bytes as bytes()
                return lambda: b""
        raise _NotAllowed(f"{module}.{name}")

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        self.left -= len(text)
        if encoding != "latin1" or self.left < 0:
            raise ValueError(f"it encodes {len(text):,} characters as {encoding}")
        return text.encode("latin1")
