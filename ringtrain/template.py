"""Texts with named fields: every error and note that a user sees is one, in the ``texts.py`` of its room."""

import re
from string import Formatter


class Template(str):
    """A text with named fields, written as for :meth:`str.format`: ``Template("rank {rank} is late")``.

    Call it with the value of each field to get the text. Raises KeyError for a field without a value."""

    __slots__ = ()

    def __call__(self, /, **values) -> str:
        return self.format(**values)

    def pattern(self, /, **values) -> str:
        """A regular expression that matches this text with these values, and with any value in its other fields."""
        unknown = values.keys() - self.fields()
        if unknown:
            raise KeyError(f"{self!r} has no field {', '.join(sorted(unknown))}")
        return "".join(_pattern_of(part, values) for part in Formatter().parse(self))

    def fields(self) -> set[str]:
        """Return the names of the fields."""
        return {name for _, name, _, _ in Formatter().parse(self) if name is not None}


def _pattern_of(part, values: dict) -> str:
    literal, name, spec, conversion = part
    if name is None:
        return re.escape(literal)
    if name not in values:
        return re.escape(literal) + r"[\s\S]*"
    field = f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}"
    return re.escape(literal + field.format(**values))
