"""Safe reading of pickles that hold only plain values and NumPy arrays.

A pickle is a program of small instructions. This interpreter has the ones for plain values, and a few names, which put
NumPy arrays together: nothing in a pickle runs. Each instruction takes time and memory in proportion to its bytes.
"""

import codecs
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np

from ringtrain.errors import DataError

MOST = 1 << 22  # instructions
LONGEST_NAME = 256  # characters of a key


def load_plain(data: bytes, where: str):
    """Return the value in ``data``: dictionaries, lists, texts, bytes, numbers, and NumPy arrays of numbers. Texts of
    Python 2 come as bytes, tuples as lists.

    Raises: DataError naming ``where``, for anything else.
    """
    try:
        return _Interpreter(BytesIO(data), len(data)).run()
    except _NotAllowed as error:
        raise DataError(
            f"{where} is refused: it names {error}, and a pickle of plain values and NumPy arrays does not"
        ) from None
    except Exception as error:  # a broken pickle raises exceptions of any type
        raise DataError(
            f"{where} is no pickle of plain values and NumPy arrays: {type(error).__name__}: {error}; copy it again"
        ) from error


class _NotAllowed(Exception):
    """The pickle names what is not in CALLS."""


class _Dtype:
    """The type of an array, until its state gives the order of bytes."""

    def __init__(self, code):
        self._code, self._order = _text(code), ""

    def set_state(self, state) -> None:
        self._order = _text(state[1]).strip("|=")

    def array(self, data, shape, order: str) -> np.ndarray:
        dtype = np.dtype(self._order + self._code)
        if dtype.kind not in "biuf":
            raise ValueError(f"it has an array of type {dtype.str}")
        return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")


class _Array:
    """An array, until its state gives its values."""

    values: np.ndarray | None = None

    def set_state(self, state) -> None:
        _, shape, dtype, columns_first, data = state
        self.values = dtype.array(data, shape, "F" if columns_first else "C")


def _text(value: Any) -> str:
    """Return the text of a value that may be bytes, as a key or a name."""
    text: Any = value.decode("latin1") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > LONGEST_NAME:
        raise ValueError(f"it has a key or name that is no text of up to {LONGEST_NAME} characters")
    return text


def _dictionary(items: list) -> dict:
    """Return the dictionary of keys and values that alternate."""
    return {_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


@dataclass
class _Interpreter:
    """``left``: bytes that texts may still become, each byte of the pickle once."""

    file: BytesIO
    left: int
    stack: list = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self):
        for _ in range(MOST):
            code = CODES[self.file.read(1)]
            if code.name == "STOP":
                return self.pop()
            if code.name not in INSTRUCTIONS:
                raise ValueError(f"it has the instruction {code.name}")
            read = READ.get(code.name) or (code.arg and code.arg.reader)
            INSTRUCTIONS[code.name](self, read(self.file) if read else None)
        raise ValueError(f"it has more than {MOST:,} instructions")

    def push(self, value) -> None:
        self.stack.append(value)

    def pop(self):
        value = self.stack.pop()
        return value.values if isinstance(value, _Array) else value

    def pop_last(self, count: int) -> list:
        return [self.pop() for _ in range(count)][::-1]

    def pop_marked(self) -> list:
        return self.pop_last(len(self.stack) - self.marks.pop())

    def extend(self, items: list) -> None:
        self.stack[-1].extend(items)

    def update(self, items: list) -> None:
        self.stack[-1].update(_dictionary(items))

    def store(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def push_name(self, name: str) -> None:
        if name not in CALLS:
            raise _NotAllowed(name.replace(" ", "."))
        self.push(CALLS[name])

    def call(self) -> None:
        function, arguments = self.pop_last(2)
        self.push(function(self, *arguments))

    def set_state(self) -> None:
        state = self.pop()
        self.stack[-1].set_state(state)

    def encode(self, text: str, encoding: str = "latin1") -> bytes:
        self.left -= len(text)
        if encoding != "latin1" or self.left < 0:
            raise ValueError(f"it encodes {len(text):,} characters as {encoding}")
        return text.encode("latin1")


CALLS: dict[str, Callable] = {
    "numpy ndarray": lambda it: None,  # an argument of _reconstruct
    "numpy dtype": lambda it, code, *_: _Dtype(code),
    "_codecs encode": _Interpreter.encode,  # protocol 2 writes bytes as text in latin1,
    "__builtin__ bytes": lambda it: b"",  # and no bytes as bytes()
}
for core in ("core", "_core"):  # of NumPy 1 and 2
    CALLS[f"numpy.{core}.multiarray _reconstruct"] = lambda it, *_: _Array()
    CALLS[f"numpy.{core}.numeric _frombuffer"] = lambda it, data, dtype, *how: dtype.array(data, *how)
CODES = {code.code.encode("latin1"): code for code in pickletools.opcodes}
READ = {  # as ASCII by pickletools
    "STRING": lambda file: codecs.escape_decode(file.readline().strip()[1:-1])[0].decode("latin1")
}
PUSHED = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
INSTRUCTIONS: dict[str, Callable[[_Interpreter, Any], object]] = {
    **dict.fromkeys(PUSHED.split(), _Interpreter.push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), lambda it, text: it.push(text.encode("latin1"))),
    **dict.fromkeys(("PROTO", "FRAME"), lambda it, _: None),
    "NONE": lambda it, _: it.push(None),
    "NEWTRUE": lambda it, _: it.push(True),
    "NEWFALSE": lambda it, _: it.push(False),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_TUPLE"), lambda it, _: it.push([])),
    "TUPLE1": lambda it, _: it.push(it.pop_last(1)),
    "TUPLE2": lambda it, _: it.push(it.pop_last(2)),
    "TUPLE3": lambda it, _: it.push(it.pop_last(3)),
    **dict.fromkeys(("LIST", "TUPLE"), lambda it, _: it.push(it.pop_marked())),
    "EMPTY_DICT": lambda it, _: it.push({}),
    "DICT": lambda it, _: it.push(_dictionary(it.pop_marked())),
    "MARK": lambda it, _: it.marks.append(len(it.stack)),
    "APPEND": lambda it, _: it.extend(it.pop_last(1)),
    "APPENDS": lambda it, _: it.extend(it.pop_marked()),
    "SETITEM": lambda it, _: it.update(it.pop_last(2)),
    "SETITEMS": lambda it, _: it.update(it.pop_marked()),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda it, key: it.push(it.memo[key])),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Interpreter.store),
    "MEMOIZE": lambda it, _: it.store(len(it.memo)),
    **dict.fromkeys(("GLOBAL", "INST"), _Interpreter.push_name),
    "STACK_GLOBAL": lambda it, _: it.push_name(" ".join(map(_text, it.pop_last(2)))),
    "REDUCE": lambda it, _: it.call(),
    "BUILD": lambda it, _: it.set_state(),
}
