"""The receivers of events: the interface, the log file, and a group of sinks as one."""

import errno
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.humanize import plural
from ringtrain.report.events import OF_A_SYNC_POINT, OF_THE_END, Event, Note, record
from ringtrain.report.records import lines_of, parse_record
from ringtrain.storage import files

CLOSED = -1  # in place of a file's number


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
        failures = []
        for sink in reversed(self._sinks):
            try:
                sink.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class AppendedFile:
    """A file of a run folder that grows by whole pieces, without a buffer: it is complete to the last piece when its
    writer is killed. No link is followed.

    flags: further ones of :func:`os.open`, such as O_TRUNC
    warn:  is told once that the disk fails
    lost:  the number of pieces, the last ones, that could not be written

    Raises: OSError.
    """

    def __init__(self, path: str, flags: int, warn: Callable[[str], None]):
        self._path, self._warn, self.lost = path, warn, 0
        self._file = files.open_nofollow(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags)

    def append(self, piece: bytes) -> None:
        """Write all of it, or nothing, as on a full disk."""
        problem = self._write(piece)
        if problem is not None and not self.lost:
            self._warn(f"log {self._path}: could not be written ({problem}); the run goes on without")
        self.lost = 0 if problem is None else self.lost + 1

    def _write(self, piece: bytes) -> str | None:
        try:
            before = os.fstat(self._file).st_size
            if os.write(self._file, piece) == len(piece):
                return None
            problem = os.strerror(errno.ENOSPC)  # there was room for a part
        except OSError as error:
            problem = error.strerror or str(error)
        with suppress(OSError):
            os.ftruncate(self._file, before)
        return problem

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file != CLOSED:
            os.close(self._file)
            self._file = CLOSED


def unwritable(path: str, error: OSError) -> RingtrainError:
    """Return the error for a file that cannot be opened."""
    kind = UsageError if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else RingtrainError
    return kind(
        f"log {path}: could not be written ({error.strerror}); make room or allow writing there, then continue from "
        "the last checkpoint with --resume auto"
    )


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
        self, path, resumed_at: int | None = None, warn: Callable[[str], None] = lambda text: None, again: bool = False
    ):
        self._path, self._warn = os.fspath(path), warn
        try:
            if resumed_at is not None and os.path.lexists(self._path):
                truncate_log(self._path, resumed_at, again)
            self._file = AppendedFile(self._path, os.O_TRUNC if resumed_at is None else 0, warn)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def handle(self, event: Event) -> None:
        line = _line(record(event))
        if self._file.lost:
            line = _line(record(Note(text=self._missing()))) + line
        self._file.append(line)

    def close(self) -> None:
        self._file.close()
        if self._file.lost:
            self._warn(f"log {self._path}: {self._missing()}")
            self._file.lost = 0

    def _missing(self) -> str:
        return f"{plural(self._file.lost, 'record')} could not be written: no room, or the disk failed"


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
