"""What every reader of bad input must keep to: it returns a value, or raises an error of ringtrain that a person can
read; and it leaves files and open descriptors as they were."""

import os
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path

import click

from ringtrain.errors import RingtrainError

LONGEST = 20_000  # characters of a message
GARBLES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of Unicode that a terminal obeys or cannot show
LEFT = ("\n", "\t")


class Broken(Exception):
    """A rule was broken."""


def judged(read: Callable[[], object], folder: Path, names: tuple[str, ...] = ()) -> str:
    """Run ``read`` and judge it; the message of its error, or "" where it returned.

    folder: all that it may look at, and must leave as it is
    names:  an error names one of these
    Raises: Broken; and whatever else than an error of ringtrain is raised by ``read``
    """
    files, descriptors = _files(folder), _descriptors()
    message = _message(read)
    if _descriptors() != descriptors:
        raise Broken(f"open descriptors: {descriptors} before, {_descriptors()} afterwards")
    if _files(folder) != files:
        raise Broken(f"files: {sorted(files)} before, {sorted(_files(folder))} afterwards, or other bytes in them")
    if message and names and not any(name in message for name in names):
        raise Broken(f"a message names none of {names}: {message[:300]!r}")
    return message


def _message(read: Callable[[], object]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            read()
        except RingtrainError as error:
            return _readable(str(error))
        except click.ClickException as error:  # of a flag, told by the command line
            return _readable(error.format_message())
        except click.exceptions.Exit:
            pass
    return ""


def _readable(message: str) -> str:
    if not message.strip():
        raise Broken("an error without a message")
    if len(message) > LONGEST:
        raise Broken(f"a message of {len(message)} characters: {message[:300]!r}…")
    wrong = [c for c in message if c not in LEFT and unicodedata.category(c) in GARBLES]
    if wrong:
        raise Broken(f"a message with {wrong[0]!r} in it: {message[:300]!r}")
    return message


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
