"""Typed records from parsed JSON and TOML: a dataclass is the form of a table, and its annotations are the types.

    @dataclass(frozen=True)
    class Row:
        bytes: Count
        samples_s: Annotated[list[float], Rules(above=0, lengths=SOME)]

    load(Row, path, "sweep of `ringtrain bench-allreduce --json`")

An int is a float where one is wanted; a bool is no number, and no number is infinite. A field with a default may be
missing. Rules are in the annotation of a field, or its metadata; rules of a list or dict are of its values:

    low, above, below, high   bounds of a number, in place of ``LIMITS``; None: without one
    choices, lengths          of a text; of a list, as a range
    wanted                    in words
    key                       the name of the field in files; "a.b" is the field b of the table a
    kind, reader              in place of the annotation: a type; a function that reads the value
    known                     keys that no field has are refused, and not ignored

Who calls a reader may give bounds for all numbers, and further rules: ``plain``, that texts are made safe for a
terminal; ``null``, that a null stands for a float that is not finite.
"""

import math
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from ringtrain.errors import UsageError, nearest, plain
from ringtrain.parsing import parse_json, read_text

BOUNDS = {"low": "at least", "above": "above", "below": "below", "high": "at most"}
# Results that are computed from these are finite, too.
LIMITS: Mapping[type, Mapping] = {int: {"low": 0, "high": 1 << 62}, float: {"low": -1e100, "high": 1e100}}
OF_VALUES = (*BOUNDS, "plain", "null")  # rules of a record that are rules of its fields, too
SCALARS = frozenset((str, int, float, bool))
ANY, SOME = range(1 << 62), range(1, 1 << 62)  # lengths of lists
NO_RULES: Mapping[str, Any] = {}
Key = tuple[str, Any, Mapping, bool]  # of a field: its name, kind and rules, and whether it is required
WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    tuple: "a list",
}
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 60


class Rules(dict):
    """Rules of an annotation."""

    __hash__ = object.__hash__  # type: ignore[assignment]


Count = Annotated[int, Rules(low=1)]


class Unfit(ValueError):
    """A value does not fit. ``problem`` and ``wanted`` in words; ``path``: the keys that lead to the value."""

    def __init__(self, problem: str, wanted: str = "", path: str = ""):
        super().__init__(plain(f"{path or 'it'} {problem}" + (f"; wanted {wanted}" if wanted else "")))
        self.problem, self.wanted, self.path = problem, wanted, path

    def under(self, key: str) -> "Unfit":
        """Return the error with a key before its path."""
        dot = "." if self.path and self.path[0] != "[" else ""
        return Unfit(self.problem, self.wanted, f"{key}{dot}{self.path}")


def load(kind: Any, path, title: str, rules: Mapping = NO_RULES, named: str = "", give: str = "", **limits) -> Any:
    """Read a JSON file. ``title``: what it has to be; ``named``: the file in errors, in place of its path; ``give``:
    what to give in its place, unless that is such a file; ``limits``: of :func:`ringtrain.parsing.read_text`. Raises
    UsageError."""
    try:
        return read(kind, parse_json(read_text(path, **limits)), rules)
    except OSError as error:
        file, give = named or plain(str(path)), give or f"a {title}"
        raise UsageError(f"{file} cannot be read: {error.strerror}; give {give}") from None
    except ValueError as error:
        raise UsageError(f"{named or plain(str(path))} is no {title}: {plain(str(error))}") from None


def read(kind: Any, value: Any, rules: Mapping = NO_RULES) -> Any:
    """Return a parsed value as this kind, with texts and numbers that fit. Raises Unfit."""
    if "reader" in rules:
        return rules["reader"](value)
    if kind in SCALARS:
        return _scalar(kind, value, rules)
    if kind is object:
        return value
    origin, items = get_origin(kind) or kind, get_args(kind) or (object, object)
    if origin is Annotated:
        kind, rules = _split(kind, rules)
        return read(kind, value, rules)
    if origin in (Union, UnionType):
        return _one_of(kind, value, rules)
    if is_dataclass(kind) and isinstance(value, dict):
        if rules.get("known"):
            check_keys(value, keys_of(origin))
        return origin(**read_fields(keys_of(origin), value, {name: rules[name] for name in rules if name in OF_VALUES}))
    if origin is dict and isinstance(value, dict):
        return {key: _under(str(key), items[1], each, rules) for key, each in value.items()}
    if origin in (list, tuple) and isinstance(value, list | tuple) and len(value) in rules.get("lengths", ANY):
        return origin(_under(f"[{index}]", items[0], each, rules) for index, each in enumerate(value))
    raise unfit(kind, value, rules)


def _under(key: str, kind: Any, value: Any, rules: Mapping) -> Any:
    try:
        return read(kind, value, rules)
    except Unfit as error:
        raise error.under(key) from None


def _one_of(kind: Any, value: Any, rules: Mapping) -> Any:
    if value is None and NoneType in get_args(kind):
        return None
    kinds = [each for each in get_args(kind) if each is not NoneType]
    kinds = [each for each in kinds if each is type(value)] or kinds
    if len(kinds) > 1:
        raise unfit(kind, value, rules)
    return read(kinds[0], value, rules)


def _scalar(kind: Any, value: Any, rules: Mapping) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and value is None and rules.get("null"):
        return math.nan
    choices = rules.get("choices") or (value,)
    if type(value) is not kind or (kind in LIMITS and not _is_within(value, rules)) or value not in choices:
        raise unfit(kind, value, rules)
    return plain(value) if kind is str and rules.get("plain") else value


def _is_within(value: Any, rules: Mapping) -> bool:
    limits, get = LIMITS[type(value)], rules.get
    low, above, below, high = get("low", limits["low"]), get("above"), get("below"), get("high", limits["high"])
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (below is None or value < below)
        and (high is None or value <= high)
        and math.isfinite(value)
    )


@cache
def keys_of(kind: type) -> dict[str, Key]:
    """Return the fields of a dataclass by their keys."""
    keys = {}
    for each in fields(kind):
        of_field, rules = _split(each.metadata.get("kind", each.type), each.metadata)
        is_required = each.default is each.default_factory is MISSING
        keys[rules.get("key", each.name)] = each.name, of_field, rules, is_required
    return keys


def _split(kind: Any, rules: Mapping) -> tuple[Any, Mapping]:
    """Return an annotation as a kind and rules."""
    return (get_args(kind)[0], {**rules, **get_args(kind)[1]}) if get_origin(kind) is Annotated else (kind, rules)


def _value(table: Any, key: str) -> Any:
    return table.get(key, MISSING) if isinstance(table, dict) else MISSING


def read_fields(known: Mapping[str, Key], table: Mapping, rules: Mapping = NO_RULES) -> dict:
    """Return the values of fields, which are known by their keys in the table. Raises Unfit."""
    values = {}
    for key, (name, kind, field_rules, is_required) in known.items():
        value = reduce(_value, key.split("."), table) if "." in key else table.get(key, MISSING)
        if value is not MISSING:
            try:
                values[name] = read(kind, value, {**rules, **field_rules} if field_rules else rules)
            except Unfit as error:
                raise error.under(key) from None
        elif is_required:
            raise Unfit("is missing", wanted(kind, field_rules), key)
    return values


def check_keys(table: Mapping, known: Collection[str], path: str = "") -> None:
    """Raise Unfit for a key that is not known."""
    for key in table:
        if key not in known:
            raise Unfit(f"has an unknown key {key!r}; {nearest(key, known)}", path=path)


def unfit(kind: Any, value: Any, rules: Mapping = NO_RULES) -> Unfit:
    return Unfit(f"is {_shown.repr(value)}", wanted(kind, rules, value))


def wanted(kind: Any, rules: Mapping, value: Any = "") -> str:
    """Return in words what fits, in place of a value."""
    kind, rules = _split(kind, rules)
    if "wanted" in rules:
        return rules["wanted"]
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(wanted(each, rules, value) for each in get_args(kind) if each is not NoneType)
    if kind is str and rules.get("choices"):
        return f"another word: {nearest(str(value), rules['choices'])}"
    word = WORDS.get(get_origin(kind) or kind, "keys with values")
    bounds = LIMITS[kind] if kind in LIMITS and type(value) in LIMITS and rules.keys().isdisjoint(BOUNDS) else rules
    limits = [f"{text} {bounds[name]}" for name, text in BOUNDS.items() if bounds.get(name) is not None]
    return f"{word} {' and '.join(limits)}" if kind in LIMITS and limits else word
