"""Validation of log records. A log may come from an older ringtrain, be cut, damaged by a disk, or written by others: a
record whose fields do not have the types of the event is dropped.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, get_args

from ringtrain.errors import plain
from ringtrain.parsing import whole_number
from ringtrain.records import Unfit, keys_of, read
from ringtrain.report.events import KINDS, Ranks, RunStarted
from ringtrain.template import LINES

EVENTS = {name: kind for kind, name in KINDS.items()}
LINE_BYTES = 1 << 22  # a longer line is no record
# A start of an earlier version may lack any field.
_START = {
    name: None if get_args(kind) else kind()
    for name, kind, _, is_required in keys_of(RunStarted).values()
    if is_required
}


def lines_of(log: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log; of a line longer than ``LINE_BYTES``, which may be as long as the file, its pieces."""
    return iter(partial(log.readline, LINE_BYTES), b"")


def parse_record(line: bytes) -> dict | None:
    """Return the record on a line of a log, or None if the line is torn, or its fields do not have the types of its
    kind. Unknown kinds and fields are not checked.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("event"), str)
    kind = EVENTS.get(record["event"]) if whole else None
    return record if whole and (kind is None or _is_whole(record, kind)) else None


def read_record(line: bytes) -> dict | None:
    """Parse a record, and make its texts plain for display."""
    record = parse_record(line)
    return record and {name: plain(value, LINES) if isinstance(value, str) else value for name, value in record.items()}


def _is_whole(record: dict, kind: type) -> bool:
    try:
        read(kind, _START | record if kind is RunStarted else record, {"null": True})
    except Unfit:
        return False
    if kind is not Ranks:
        return record.get("seconds", 0.0) is not None
    lags = [lag for lags in (record.get("lag") or {}).values() for lag in lags]
    by_rank = {len(value) for value in record.values() if isinstance(value, list)}
    return len(by_rank) < 2 and None not in map(whole_number, lags)
