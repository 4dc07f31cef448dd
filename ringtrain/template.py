"""Text that is safe for a terminal, and texts with named fields.

A message is an f-string where it happens. It often holds text of others: names of files, classes, models, hosts. So a
message is one line, and what would break it is escaped when it becomes an error or is printed (:func:`escaped`).
A text of several lines is :class:`Lines`, made by :func:`joined`. A sentence that is used twice is a :class:`Template`.
"""

import unicodedata
from collections.abc import Iterable
from string import Formatter

LINES = "\n\t"
JOINERS = "\u200c\u200d"  # in words of Persian and Hindi, and in emoji
COMPOSED = ("text", "collective", "everyone")  # fields of texts that templates have made already


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
    """Return messages as the lines of one text."""
    return Lines("\n".join(map(escaped_message, lines)))


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


class Template(str):
    """A text with named fields, written as for :meth:`str.format`: ``Template("rank {rank} is late")``.

    Call it with the value of each field to get the text, in which values are escaped. Raises KeyError for a field
    without a value."""

    __slots__ = ()

    def __call__(self, /, **values) -> str:
        text = self.format(**values)
        if text.isprintable():
            return text
        return Lines("".join(_escaped_part(part, values) for part in Formatter().parse(self)))


def _escaped_part(part, values: dict) -> str:
    """Return a part of a template, filled. A field stays on its line, unless ringtrain has composed its lines: by the
    field's name, by its place at the start of a line, or as it is an error of ringtrain."""
    literal, name, *form = part
    if name is None:
        return literal
    composed = name in COMPOSED or literal.endswith("\n") or type(values[name]).__module__.startswith("ringtrain.")
    return literal + escaped(_field(name, *form).format(**values), LINES if composed else "")


def _field(name: str, spec: str, conversion: str | None) -> str:
    return f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}"
