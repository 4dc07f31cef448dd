"""The receivers of events: the interface, the log file, and a group of sinks as one."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from ringtrain.humanize import plural
from ringtrain.report.appended import AppendedFile, cannot_append, unwritable
from ringtrain.report.events import OF_A_SYNC_POINT, OF_THE_END, Event, Note, record
from ringtrain.report.records import lines_of, parse_record
from ringtrain.storage import files


class Sink(ABC):
    """A receiver of events."""

    @abstractmethod
    def handle(self, event: Event) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Close the sink after its last event. A second call does nothing; a call after an error is allowed."""


class SinkGroup(Sink):
    """Hand every event to each sink, in their order."""

    def __init__(self, sinks: Iterable[Sink]):
        self._sinks = tuple(sinks)

    def handle(self, event: Event) -> None:
        for sink in self._sinks:
            sink.handle(event)

    def close(self) -> None:
        """Close every sink, the last one first, even if one fails; then raise the first failure."""
        failures = [error for sink in reversed(self._sinks) if (error := _failure(sink)) is not None]
        if failures:
            raise failures[0]


def _failure(sink: Sink) -> Exception | None:
    try:
        sink.close()
    except Exception as error:
        return error
    return None


class JsonLines(Sink):
    """Write each event as a line of JSON without a buffer: the log of a killed run is complete to the last event.

    With ``resumed_at`` the run's file is continued, after it is cut where the resumed run writes again (see
    :func:`truncate_log`). Without, the file is made anew. ``again``: the records that follow that iteration (its
    epoch's end, evaluation, checkpoint) are written again, too.

    A full or failing disk does not end a run: ``warn(text)`` reports it once, training continues, and a note in the log
    gives the number of missing records when there is room again.

    Raises: RingtrainError if the file cannot be opened, with the reason.
    """

    def __init__(
        self,
        path,
        resumed_at: int | None = None,
        warn: Callable[[str], None] = lambda text: None,
        again: bool = False,
    ):
        self._path, self._warn, self._lost = os.fspath(path), warn, 0
        try:
            if resumed_at is not None and os.path.lexists(self._path):
                truncate_log(self._path, resumed_at, again)
            self._file = AppendedFile(self._path, os.O_TRUNC if resumed_at is None else 0)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def handle(self, event: Event) -> None:
        line = _line(record(event))
        if self._lost:
            line = _line(record(Note(text=self._missing()))) + line
        problem = self._file.append(line)
        if problem is None:
            self._lost = 0
            return
        self._lost += 1
        if self._lost == 1:
            self._warn(cannot_append(self._path, problem))

    def close(self) -> None:
        self._file.close()
        if self._lost:
            self._warn(f"log {self._path}: {self._missing()}")
            self._lost = 0

    def _missing(self) -> str:
        return f"{plural(self._lost, 'record')} could not be written: no room, or the disk failed"


def _line(record: dict) -> bytes:
    return (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="backslashreplace")


def truncate_log(path, iteration: int, again: bool = False) -> None:
    """Shorten a log to the records that stay valid for a run resumed at ``iteration``.

    Events come in order: the records before the first one of a later iteration, or of the end, stay. A disk may
    have changed a few numbers, and one such line must not cost the others, so the cut is at the place with the fewest
    records on the wrong side of it. Malformed lines in between stay, and every reader passes over them; the last line
    that stays is whole. A file is shortened in one step or not at all, so a crash here loses nothing more.
    """
    with open(path, "r+b", opener=files.open_nofollow) as log:
        kept = least = balance = end = 0
        for line in lines_of(log):
            side, begin, end = _side(line, iteration, again), end, end + len(line)
            balance += side or 0
            if side is not None and (balance < least or (side == 0 and begin == kept)):
                kept, least = end, balance
        log.truncate(kept)


def _side(line: bytes, iteration: int, again: bool) -> int | None:
    """Return -1 for a record before the cut, 1 for one after it, 0 for one without an iteration, None for a malformed
    line."""
    record = parse_record(line)
    if record is None:
        return None
    if record["event"] in OF_THE_END:
        return 1
    if type(record.get("iteration")) is not int:
        return 0
    last = iteration - 1 if again and record["event"] in OF_A_SYNC_POINT else iteration
    return 1 if record["iteration"] > last else -1


def kinds_at(path, iteration: int) -> set[str]:
    """Return the kinds of the records of an iteration that a log has. Raises OSError."""
    with open(path, "rb", opener=files.open_nofollow) as log:
        records = (parse_record(line) for line in lines_of(log) if b'"iteration"' in line)
        return {record["event"] for record in records if record and record.get("iteration") == iteration}


def is_log(path) -> bool:
    """Return whether a file has a record within its first lines, is empty, or does not exist."""
    try:
        with open(path, "rb", opener=files.open_nofollow) as log:
            lines = [log.readline(1 << 16) for _ in range(100)]
    except FileNotFoundError:
        return True
    return not any(lines) or any(parse_record(line) is not None for line in lines)
