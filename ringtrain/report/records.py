"""Which lines of a log are records that can be reckoned with. A log may be of an older ringtrain, cut, or written by
others: a record whose fields are not of the kinds that events have is passed over, and texts are made plain."""

from dataclasses import MISSING, fields
from types import UnionType
from typing import get_args, get_origin

from ringtrain.errors import plain
from ringtrain.report.events import KINDS, RunStarted
from ringtrain.report.sinks import parse

MOST, MOST_WHOLE = 1e100, 1 << 62  # what is reckoned with them is finite, too
EVENTS = {name: kind for kind, name in KINDS.items()}
LATER = ("exposed_share", "peak_bytes", "lag")  # that logs of before do not have


def read_record(line: bytes) -> dict | None:
    """The record on a line; None where it is none, or not as an event is. Of kinds that are not known, as it is."""
    found = parse(line)
    kind = EVENTS.get(found["event"]) if found else None
    if kind is None:
        return found
    return _made_plain(found) if _is_whole(found, kind) else None


def _is_whole(found: dict, kind: type) -> bool:
    for field in fields(kind):
        if field.name in found:
            if not _fits(found[field.name], field.type):
                return False
        elif field.default is MISSING and kind is not RunStarted and field.name not in LATER:
            return False
    by_rank = {len(value) for value in found.values() if isinstance(value, list)}
    return len(by_rank) < 2 or found["event"] != "ranks"


def _fits(value, kind) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if kind is float:  # what was not finite is null
        return value is None or (type(value) in (int, float) and abs(value) <= MOST)
    if kind is int:
        return type(value) is int and 0 <= value <= MOST_WHOLE
    if kind is dict:
        return isinstance(value, dict) and all(map(_counts, value.values()))
    if get_origin(kind) in (list, tuple):
        return isinstance(value, list) and all(_fits(each, get_args(kind)[0]) for each in value)
    if kind in (str, bool, type(None)):
        return isinstance(value, kind)
    return isinstance(value, dict)


def _counts(found) -> bool:
    """Whole numbers → how often."""
    return isinstance(found, dict) and all(
        lag.isascii() and lag.isdigit() and len(lag) < 18 and _fits(often, int) for lag, often in found.items()
    )


def _made_plain(found: dict) -> dict:
    return {name: plain(value) if isinstance(value, str) else value for name, value in found.items()}
