"""Validation of log records. A log may come from an older ringtrain, be cut, damaged by a disk, or written by others: a
record whose fields do not have the types of the event is dropped.
"""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import UnionType
from typing import BinaryIO, get_args, get_origin

from ringtrain.errors import plain
from ringtrain.report.events import KINDS, RunStarted
from ringtrain.template import LINES

MOST, MOST_WHOLE = 1e100, 1 << 62  # so that results are finite, too
EVENTS = {name: kind for kind, name in KINDS.items()}
LINE_BYTES = 1 << 22  # a longer line is no record
LATER = ("exposed_share", "peak_bytes")  # missing in logs of earlier versions


def lines_of(log: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log; of a line longer than ``LINE_BYTES``, which may be as long as the file, its pieces."""
    return iter(partial(log.readline, LINE_BYTES), b"")


def parse_record(line: bytes) -> dict | None:
    """Return the record on a line of a log, or None if the line is torn, or its fields do not have the types of its
    kind. Unknown kinds and fields are not checked.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(found, dict) and isinstance(found.get("event"), str)
    kind = EVENTS.get(found["event"]) if whole else None
    return found if whole and (kind is None or _is_whole(found, kind)) else None


def read_record(line: bytes) -> dict | None:
    """Parse a record, and make its texts plain for display."""
    found = parse_record(line)
    return found and {name: plain(value, LINES) if isinstance(value, str) else value for name, value in found.items()}


def _is_whole(found: dict, kind: type) -> bool:
    by_rank = {len(value) for value in found.values() if isinstance(value, list)}
    return _has_fields(found, kind) and (len(by_rank) < 2 or found["event"] != "ranks")


def _has_fields(found: dict, kind: type) -> bool:
    for field in fields(kind):
        if field.name in found:
            if not _fits(found[field.name], field.type) or (field.name == "seconds" and found["seconds"] is None):
                return False
        elif field.default is field.default_factory is MISSING and kind is not RunStarted and field.name not in LATER:
            return False
    return True


def _fits(value, kind) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if kind is float:  # null stands for values that are not finite
        return value is None or (type(value) in (int, float) and abs(value) <= MOST)
    if kind is int:
        return type(value) is int and 0 <= value <= MOST_WHOLE
    if kind is dict:
        return isinstance(value, dict) and all(map(_counts, value.values()))
    if get_origin(kind) is dict:  # by name
        return isinstance(value, dict) and all(_fits(each, get_args(kind)[1]) for each in value.values())
    if get_origin(kind) in (list, tuple):
        return isinstance(value, list) and all(_fits(each, get_args(kind)[0]) for each in value)
    if isinstance(kind, type) and is_dataclass(kind):
        return isinstance(value, dict) and _has_fields(value, kind)
    return isinstance(value, kind)


def _counts(found) -> bool:
    """Return whether it maps whole numbers to counts."""
    return isinstance(found, dict) and all(
        lag.isascii() and lag.isdigit() and len(lag) < 18 and _fits(often, int) for lag, often in found.items()
    )
