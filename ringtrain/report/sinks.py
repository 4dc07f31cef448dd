"""Where events go: the contract, the log file, and several sinks as one."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable

from ringtrain.errors import RingtrainError
from ringtrain.report.events import OF_A_MEETING, OF_THE_END, Event, record


class Sink(ABC):
    @abstractmethod
    def handle(self, event: Event) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Nothing follows. May be called more than once, and after an error."""


class Many(Sink):
    """Hands every event to each of its sinks, in their order."""

    def __init__(self, sinks: Iterable[Sink]):
        self._sinks = tuple(sinks)

    def handle(self, event: Event) -> None:
        for sink in self._sinks:
            sink.handle(event)

    def close(self) -> None:
        """Closes every sink, the last one first, also where one fails; the first failure is raised then."""
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
    """Writes each event as a line of JSON, and lets none wait in a buffer: a killed run has its log to the
    last event.

    With ``resumed_at`` the file of the run so far is continued: it is first cut at the first record that the
    resumed run will write again or that is no longer true (see :func:`cut`). Without, the file is made anew. ``again``:
    what followed that iteration (its epoch's end, evaluation, checkpoint) is written again, too.

    Raises: RingtrainError where the file cannot be written, saying why.
    """

    def __init__(self, path, resumed_at: int | None = None, again: bool = False):
        self._path = os.fspath(path)
        try:
            if resumed_at is not None and os.path.exists(self._path):
                cut(self._path, resumed_at, again)
            # Unbuffered: one write a line, so no half line of ours is left behind but by a full disk.
            self._file = open(self._path, "wb" if resumed_at is None else "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from error

    def handle(self, event: Event) -> None:
        line = json.dumps(record(event), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        self._file.close()

    def _unwritable(self, error: OSError) -> RingtrainError:
        return RingtrainError(
            f"log {self._path}: could not be written ({error.strerror}); make room or allow writing there, "
            "then continue from the last checkpoint with --resume auto"
        )


def cut(path, iteration: int, again: bool = False) -> None:
    """Shorten a log to what holds for a run that is resumed at ``iteration``.

    Events come in order, so the log of the resumed run is what stands before the first record that is of a
    later iteration, or is of the end, or is no whole record (the last line of a killed run). A file is
    shortened in one step or not at all, so a crash here loses nothing more.
    """
    with open(path, "rb") as log:
        kept = 0
        for line in log:
            if not _stays(line, iteration, again):
                break
            kept += len(line)
    os.truncate(path, kept)


def _stays(line: bytes, iteration: int, again: bool) -> bool:
    found = parse(line)
    if found is None or found["event"] in OF_THE_END:
        return False
    own = found.get("iteration", 0)
    if again and found["event"] in OF_A_MEETING and own == iteration:
        return False
    return type(own) is int and own <= iteration


def parse(line: bytes) -> dict | None:
    """The record on a line of a log, or None where the line is torn or is something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(found, dict) and isinstance(found.get("event"), str)
    return found if whole else None
