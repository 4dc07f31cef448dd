"""Reading a pickle that holds only plain values and NumPy arrays, by a machine that can do nothing else.

A pickle is a program: Python's unpickler calls whatever importable function it names, gives state to any object, and
makes room for as many of them as it claims. This machine has the instructions that plain values need. A name is nothing
but a word on its stack, and of the words by which NumPy's arrays are put together each stands for one function here.
A pickle that names anything else is refused at that name.

Source: pickletools.py of CPython 3.11: the instructions of protocols 0 to 5.
"""

import codecs
import struct
from dataclasses import dataclass, field

from ringtrain.data.pickle_names import CALLED, Name, Refused, Shell, Type
from ringtrain.errors import DataError

DEEPEST = 8  # lists within lists: a pickle can hold a list that holds itself
MOST = 1 << 20  # values when all is written out: a list can be held many times in one that is, in turn


def load_plain(data: bytes, where: str):
    """The value in ``data``: dictionaries, lists, texts, bytes, numbers, and NumPy arrays of numbers. Texts
    of Python 2 come as bytes.

    Raises: DataError naming ``where``, for anything else.
    """
    try:
        return _unwrap(_Machine(data).run(), [MOST])
    except Refused as error:
        raise DataError(
            f"{where} is refused: a pickle of plain values and arrays is wanted, but {error}; "
            "nothing that it names was run"
        ) from error
    except Exception as error:  # a broken pickle fails in as many ways as there are instructions
        raise DataError(f"{where} is truncated or not a pickle: {type(error).__name__}: {error}") from error


def _unwrap(value, left: list[int], depth: int = 0):
    """``left``: how many values more it may have"""
    if depth > DEEPEST:
        raise Refused(f"it has more than {DEEPEST} lists within lists")
    left[0] -= 1
    if left[0] < 0:
        raise Refused(f"it has more than {MOST:,} values")
    if isinstance(value, Shell):
        return value.array
    if isinstance(value, dict):
        return {_text(key): _unwrap(item, left, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unwrap(item, left, depth + 1) for item in value]
    if isinstance(value, Name | Type):
        raise Refused("a value of it is a name, or a type")
    return value


def _text(key):
    return key.decode("latin1") if isinstance(key, bytes) else key


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────
_MARK = object()


@dataclass(slots=True)
class _Machine:
    """``stack`` holds values, and _MARK where a group of them begins; ``memo`` what may be wanted again, by number."""

    data: bytes
    at: int = 0
    stack: list = field(default_factory=list)
    memo: dict = field(default_factory=dict)

    def run(self):
        while (code := self.take(1)) != b".":
            if code not in INSTRUCTIONS:
                raise Refused(f"it has the instruction {code!r}")
            INSTRUCTIONS[code](self)
        return self.stack.pop()

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise EOFError("it ends within an instruction")
        self.at += count
        return found

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        found, self.at = self.data[self.at : end], end + 1
        return found

    def number(self, form: str):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def push(self, value) -> None:
        self.stack.append(value)

    def last(self, count: int) -> list:
        found = self.stack[-count:]
        if len(found) < count or _MARK in found:
            raise ValueError("too few values")
        del self.stack[-count:]
        return found

    def group(self) -> list:
        """The values since the last mark, which goes too."""
        begin = len(self.stack) - 1
        while begin >= 0 and self.stack[begin] is not _MARK:
            begin -= 1
        if begin < 0:
            raise ValueError("a group without a begin")
        found = self.stack[begin + 1 :]
        del self.stack[begin:]
        return found

    def keep(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def extend(self, values: list) -> None:
        _of(self.stack[-1], list).extend(values)

    def update(self, values: list) -> None:
        _of(self.stack[-1], dict).update(_pairs(values))

    def name(self, module: str, word: str) -> None:
        if (module, word) not in CALLED:
            raise Refused(f"it wants to use {module}.{word}")
        self.push(Name(module, word))

    def call(self) -> None:
        name, arguments = self.last(2)
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise Refused("it wants to call something that is no name")
        self.push(name.call(arguments))

    def set_state(self) -> None:
        state, owner = self.last(1)[0], self.stack[-1]
        if not isinstance(owner, Shell | Type):
            raise Refused(f"it wants to alter a {'function' if isinstance(owner, Name) else 'value'}")
        owner.set_state(state)

    def outside(self) -> None:
        raise Refused("it refers to an object outside of it")


def _of(value, kind: type):
    if type(value) is not kind:
        raise Refused(f"it adds to something that is no {kind.__name__}")
    return value


def _pairs(values: list) -> dict:
    return dict(zip(values[::2], values[1::2], strict=True))


def _whole(text: bytes) -> int | bool:
    """Protocol 0 writes True and False as 01 and 00."""
    return text == b"01" if text in (b"01", b"00") else int(text)


def _quoted(text: bytes) -> bytes:
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
        raise ValueError("a text without its quotation marks")
    return codecs.escape_decode(text[1:-1])[0]


def _long(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


INSTRUCTIONS = {
    # values
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": lambda m: m.push(_whole(m.line())),
    b"L": lambda m: m.push(int(m.line().rstrip(b"L"))),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"\x8a": lambda m: m.push(_long(m.take(m.number("<B")))),
    b"F": lambda m: m.push(float(m.line())),
    b"G": lambda m: m.push(m.number(">d")),
    b"S": lambda m: m.push(_quoted(m.line())),
    b"T": lambda m: m.push(m.take(m.number("<I"))),
    b"U": lambda m: m.push(m.take(m.number("<B"))),
    b"B": lambda m: m.push(m.take(m.number("<I"))),
    b"C": lambda m: m.push(m.take(m.number("<B"))),
    b"\x8e": lambda m: m.push(m.take(m.number("<Q"))),
    b"\x96": lambda m: m.push(m.take(m.number("<Q"))),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.push(m.take(m.number("<I")).decode("utf-8", "surrogatepass")),
    b"\x8c": lambda m: m.push(m.take(m.number("<B")).decode("utf-8", "surrogatepass")),
    b"\x8d": lambda m: m.push(m.take(m.number("<Q")).decode("utf-8", "surrogatepass")),
    # groups
    b"(": lambda m: m.push(_MARK),
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b")": lambda m: m.push(()),
    b"l": lambda m: m.push(m.group()),
    b"d": lambda m: m.push(_pairs(m.group())),
    b"t": lambda m: m.push(tuple(m.group())),
    b"\x85": lambda m: m.push(tuple(m.last(1))),
    b"\x86": lambda m: m.push(tuple(m.last(2))),
    b"\x87": lambda m: m.push(tuple(m.last(3))),
    b"a": lambda m: m.extend(m.last(1)),
    b"e": lambda m: m.extend(m.group()),
    b"s": lambda m: m.update(m.last(2)),
    b"u": lambda m: m.update(m.group()),
    b"0": lambda m: m.stack.pop(),
    # what is wanted again
    b"2": lambda m: m.push(m.stack[-1]),
    b"p": lambda m: m.keep(int(m.line())),
    b"q": lambda m: m.keep(m.number("<B")),
    b"r": lambda m: m.keep(m.number("<I")),
    b"\x94": lambda m: m.keep(len(m.memo)),
    b"g": lambda m: m.push(m.memo[int(m.line())]),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    # names, calls, states; "i" names a class, and there are none here
    b"c": lambda m: m.name(m.line().decode(), m.line().decode()),
    b"i": lambda m: m.name(m.line().decode(), m.line().decode()),
    b"\x93": lambda m: m.name(*m.last(2)),
    b"R": _Machine.call,
    b"b": _Machine.set_state,
    b"P": _Machine.outside,
    b"Q": _Machine.outside,
    # its own form
    b"\x80": lambda m: m.take(1),
    b"\x95": lambda m: m.take(8),
}
