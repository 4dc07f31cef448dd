"""How an input is made from valid ones: bytes are spoiled, and so are the trees of JSON, TOML and HDF5.

All randomness comes from the ``random.Random`` that is passed in. An input of several parts is a bundle: one text of
bytes, so that a fuzzer which knows of bytes alone can keep it.
"""

import json
import re
import struct
import tomllib
from collections.abc import Callable, Sequence
from random import Random

import tomli_w

Mutator = Callable[[Random, bytes], bytes]
NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64, 10**30)
FLOATS = (0.0, -0.0, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 0.1)
TEXTS = (
    "", " ", "\0", "\x1b[2J", "a\nb", "\u202e", "²", "٣", "é", "a" * 300, "a" * 6000, "9" * 400, "9" * 5000, "../x",
    "/", "$input", "$x", "-1", "nan", "1e999", "0:0", "1:2", "100:102", "true", "\ud800", "%s", "[b]x", "input", "none",
    "auto",
)  # fmt: skip
MOST_BYTES = 1 << 16


# ── bundles ───────────────────────────────────────────────────────────────────────────────────────────────────
def bundle(parts: Sequence[bytes]) -> bytes:
    """Each part behind its length."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def parts_of(data: bytes, count: int) -> list[bytes]:
    """Exactly ``count`` parts, whatever the bytes."""
    parts = []
    for _ in range(count):
        length = min(int.from_bytes(data[:4], "little"), len(data))
        parts.append(data[4 : 4 + length])
        data = data[4 + length :]
    return parts


def of_bundle(count: int, *each: Mutator) -> Mutator:
    """Spoils one part, or a few. ``each``: by part, the last for all that follow."""

    def mutate(random: Random, data: bytes) -> bytes:
        parts = parts_of(data, count)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            place = random.randrange(count)
            parts[place] = each[min(place, len(each) - 1)](random, parts[place])
        return bundle(parts)

    return mutate


def any_of(*mutators: Mutator) -> Mutator:
    return lambda random, data: random.choice(mutators)(random, data)


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────
def spoil(random: Random, data: bytes) -> bytes:
    """A few changes of bytes."""
    spoilt = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        random.choice(SPOILERS)(random, spoilt)
    return bytes(spoilt[:MOST_BYTES])


def _place(random: Random, data: bytearray) -> int:
    """Headers are at the front: half of the places are."""
    return random.randrange(min(len(data), random.choice((64, len(data)))) or 1) if data else 0


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[_place(random, data)] ^= 1 << random.randrange(8)


def _put(random: Random, data: bytearray) -> None:
    if data:
        data[_place(random, data)] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))


def _number(random: Random, data: bytearray) -> None:
    width, place = random.choice((1, 2, 4, 8)), _place(random, data)
    value = random.choice(NUMBERS) % (1 << (8 * width))
    data[place : place + width] = value.to_bytes(width, random.choice(("little", "big")))


def _cut(random: Random, data: bytearray) -> None:
    place = _place(random, data)
    del data[place : place + random.choice((1, 2, 4, 8, 64, len(data)))]


def _double(random: Random, data: bytearray) -> None:
    place = _place(random, data)
    data[place:place] = data[place : place + random.choice((1, 4, 16, 256))] * random.choice((1, 2, 100))


def _insert(random: Random, data: bytearray) -> None:
    place = _place(random, data)
    data[place:place] = bytes(random.randrange(256) for _ in range(random.choice((1, 2, 4, 16))))


def _move(random: Random, data: bytearray) -> None:
    start, place = _place(random, data), _place(random, data)
    piece = data[start : start + random.choice((1, 4, 16, 64))]
    data[place : place + len(piece)] = piece


SPOILERS = (_flip, _put, _number, _cut, _double, _insert, _move)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────
def reword(random: Random, data: bytes) -> bytes:
    """Another number, word or sign in a text."""
    text = data.decode("utf-8", "replace")
    found = list(re.finditer(r"\d+|[A-Za-z_]+|[^\w\s]", text))
    if not found:
        return random.choice(TEXTS).encode("utf-8", "replace")
    match = random.choice(found)
    fresh = random.choice(
        (*TEXTS, *map(str, NUMBERS), *map(str, FLOATS), random.choice(found)[0], "[" * 3000, "{", "}")
    )
    return (text[: match.start()] + fresh + text[match.end() :]).encode("utf-8", "replace")[:MOST_BYTES]


def lines(random: Random, data: bytes) -> bytes:
    """Lines are left out, doubled or exchanged."""
    rows = data.split(b"\n")
    one, other = random.randrange(len(rows)), random.randrange(len(rows))
    kind = random.randrange(3)
    if kind == 0:
        del rows[one]
    elif kind == 1:
        rows.insert(other, rows[one])
    else:
        rows[one], rows[other] = rows[other], rows[one]
    return b"\n".join(rows)


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────────────────
def change(random: Random, tree):
    """The same tree of tables, lists and plain values with something else in one place."""
    places = list(_places(tree))
    if not places:
        return _fresh(random, tree)
    owner, key = random.choice(places)
    kind = random.randrange(6)
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, dict):
        owner[random.choice((*TEXTS, key))] = owner.pop(key)
    elif kind == 2:
        owner[key] = _fresh(random, tree)
    elif kind == 3:
        other, place = random.choice(places)
        owner[key] = _copy(other[place])
    else:
        owner[key] = _near(random, owner[key])
    return tree


def _places(tree):
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield tree, key
        yield from _places(value)


def _copy(value):
    return json.loads(json.dumps(value, default=str))


def _fresh(random: Random, tree):
    return random.choice(
        (*NUMBERS, *FLOATS, *TEXTS, True, False, [], {}, [[]], [1, 2], {"a": 1}, 10**400, -(10**400), ["a"], [0.5, "b"])
    )


def _near(random: Random, value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((*NUMBERS, value + 1, -value, 10**400))
    if isinstance(value, float):
        return random.choice(FLOATS)
    if isinstance(value, str):
        return random.choice((*TEXTS, value * 2, value[1:]))
    if isinstance(value, list):
        return random.choice((value * 2, value[1:], [*value, 0], value[::-1]))
    return _fresh(random, value)


def of_json(random: Random, data: bytes) -> bytes:
    try:
        tree = json.loads(data)
        for _ in range(random.choice((1, 1, 2, 4))):
            tree = change(random, tree)
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):
        return reword(random, data)


def of_json_lines(random: Random, data: bytes) -> bytes:
    rows = data.split(b"\n")
    place = random.randrange(len(rows))
    rows[place] = of_json(random, rows[place] or b"{}")
    return b"\n".join(rows)[:MOST_BYTES]


def of_toml(random: Random, data: bytes) -> bytes:
    try:
        tree = tomllib.loads(data.decode())
        for _ in range(random.choice((1, 1, 2, 4))):
            tree = change(random, tree)
        return tomli_w.dumps(tree).encode()
    except (ValueError, RecursionError, TypeError, AttributeError):
        return reword(random, data)
