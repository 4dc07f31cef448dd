"""Text that is safe for a terminal.

A message is an f-string where it happens, or a text with named fields if it is used twice. It often holds text of
others: names of files, classes, models, hosts. So a message is one line, and what would break it is escaped when it
becomes an error or is printed (:func:`escaped`). A text of several lines is :class:`Lines`, made by :func:`joined`.
"""

import unicodedata
from collections.abc import Iterable

LINES = "\n\t"
JOINERS = "\u200c\u200d"  # in words of Persian and Hindi, and in emoji


def escaped(text: str, kept: str = "") -> str:
    """Return a text that is safe for a terminal, on one line: characters that would move its cursor, or colour, reorder
    or hide other text, are escaped, but those ``kept``. A plain text stays as it is, spaces of any width included."""
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) or c in kept else c.encode("unicode_escape").decode() for c in text)


class Lines(str):
    """A text whose line breaks are ringtrain's own: what it quotes is escaped already."""

    __slots__ = ()


def escaped_message(text: str) -> str:
    """Return a message that is safe for a terminal: on one line, unless it is :class:`Lines`."""
    return escaped(text, LINES if isinstance(text, Lines) else "")


def joined(lines: Iterable[str]) -> Lines:
    return Lines("\n".join(map(escaped_message, lines)))


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
