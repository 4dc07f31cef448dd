"""Bounded parsing of text from files, variables and flags: malformed input raises ValueError and nothing else."""

import json
import re
import tomllib
from collections.abc import Callable
from fractions import Fraction

LARGEST_BYTES = 64 << 20
PIECE_BYTES = 1 << 20
LARGEST_NUMBER = (1 << 63) - 1
UNSET = "perhaps a shell variable is not set; leave it out if it is not needed"  # of an empty text
TOO_LONG = "it has more than {most:,} bytes"
TOML_TOO_DEEP = "its lists and tables are nested too deep"
JSON_TOO_DEEP = "its lists and objects are nested too deep"
NUMBER_TOO_LARGE = "the number {digits:.20}… has more than 63 bits"
NUMBER_OF_BITS = "it has an integer of {bits} bits; at most 63 are allowed"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST_SIZE = 1 << 40


def read_text(path, largest: int = LARGEST_BYTES, opener: Callable[[str, int], int] | None = None) -> str:
    """Return the whole of a file in UTF-8. ``opener``: as of :func:`open`. Raises OSError; ValueError if it is not
    text, or has more than ``largest`` bytes."""
    data = bytearray()
    with open(path, "rb", opener=opener) as file:
        while len(data) <= largest and (piece := file.read(PIECE_BYTES)):  # a read allocates its whole size at once
            data += piece
    if len(data) > largest:
        raise ValueError(TOO_LONG.format(most=largest))
    return data.decode("utf-8")


def parse_toml(text: str) -> dict:
    """Return the parsed TOML. Raises ValueError."""
    try:
        table = tomllib.loads(text)
        _check_numbers(table)
        return table
    except RecursionError:
        raise ValueError(TOML_TOO_DEEP) from None


def parse_json(text: str):
    """Return the parsed JSON. Raises ValueError."""
    try:
        return json.loads(text, parse_int=_bounded)
    except RecursionError:
        raise ValueError(JSON_TOO_DEEP) from None


def _bounded(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST_NUMBER:
        raise ValueError(NUMBER_TOO_LARGE.format(digits=digits))
    return int(digits)


def _check_numbers(tree) -> None:
    """Raise ValueError for an integer of more bits than TOML allows: Python cannot print the longest of them."""
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            _check_numbers(value)
        elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise ValueError(NUMBER_OF_BITS.format(bits=value.bit_length()))


def whole_number(text: str) -> int | None:
    """Return the number of a text of digits, of at most 63 bits; or None. A sign is not a digit, nor is "²"."""
    if not (text.isascii() and text.isdigit()) or len(text) > 4000:
        return None
    value = int(text)
    return value if value <= LARGEST_NUMBER else None


def epochs(text: str) -> Fraction | None:
    """Return the exact number in "5ep" or "0.5ep"; None for any other text."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)ep", text)
    return Fraction(match[1]) if match else None


def size(text: str) -> int:
    """Return the bytes of "64K", "1.5MiB" or "4096", as nccl-tests and people write them. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a size: write it as 4096, 64K, 1.5M or 2G (of 1024)")
    number = float(match[1]) * UNITS[match[2].upper()]
    if number > LARGEST_SIZE:
        raise ValueError(f"a size of {text} is too large: at most {LARGEST_SIZE >> 30}G")
    return int(number)
