"""HTML as values: a text is escaped once, where it becomes a part of a page; its control characters, too."""

from collections.abc import Iterable, Sequence
from html import escape

from ringtrain.show.tables import Column
from ringtrain.template import LINES, escaped


class Html(str):
    """Text that is HTML already; any other text is escaped."""

    __slots__ = ()


def attribute(value: str) -> str:
    return f'"{escape(escaped(value))}"'


def tag(name: str, *inner: str, **attributes: str) -> Html:
    """Return an element. ``inner``: its parts; ``attributes``: names may end in _, as class_"""
    words = "".join(f" {key.rstrip('_')}={attribute(value)}" for key, value in attributes.items())
    parts = (part if isinstance(part, Html) else escape(escaped(part, LINES), quote=False) for part in inner)
    return Html(f"<{name}{words}>{''.join(parts)}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Html:
    """Return a table. ``left``: the number of columns that are words; the others are figures, to the right."""
    sides = [{} if index < left else {"class_": "figure"} for index in range(len(head))]
    titles = tag("tr", *(tag("th", title, **side) for title, side in zip(head, sides, strict=True)))
    lines = [tag("tr", *(tag("td", cell, **side) for cell, side in zip(row, sides, strict=True))) for row in rows]
    whole = tag("table", tag("thead", titles), tag("tbody", *lines))
    return tag("div", whole, class_="scroll")


def columns_table(columns: Sequence[Column], rows: Sequence) -> Html:
    """Return a table of columns, columns of words first; units follow the titles."""
    head = [" ".join(filter(None, (column.title, column.unit))) for column in columns]
    return table(head, ([column.text(row) for column in columns] for row in rows), sum(each.left for each in columns))


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return a table of two columns: names and values."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in pairs]
    return tag("div", tag("table", tag("tbody", *rows), class_="facts"), class_="scroll")


def items(lines: Iterable[str]) -> Html:
    return tag("ul", *(tag("li", line) for line in lines))
