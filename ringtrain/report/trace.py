"""The timeline of the ranks in Chrome's trace-event format: a file for Perfetto or chrome://tracing.

Each rank is a process of the trace, and has tracks: its loop, its device, and one for each bucket that it exchanges. On
a track slices follow one another, or nest.

Source: Trace Event Format, Google 2016: complete events ("X"), in microseconds, and metadata events ("M").
"""

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ringtrain.errors import UsageError, plain
from ringtrain.records import Rules, load
from ringtrain.storage import files

LOOP, DEVICE = "loop", "device"
LEAST_NS = 1000  # shorter slices are left out
TRACE = "trace.json"  # in a run folder
LATEST_US = 1e12  # eleven days


@dataclass(frozen=True, slots=True)
class Slice:
    """One activity. start_ns, stop_ns: since a moment that is the same for all ranks. ``about``: more about it, in
    words and numbers.
    """

    track: str
    name: str
    start_ns: int
    stop_ns: int
    about: dict = field(default_factory=dict)

    def as_json(self) -> list:
        """Return the slice as a trace event."""
        return [self.track, self.name, self.start_ns, self.stop_ns, self.about]


def trace_document(ranks: dict[int, Sequence[Slice]]) -> dict:
    events = [event for rank, slices in ranks.items() for event in _of_rank(rank, slices)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_rank(rank: int, slices: Sequence[Slice]) -> list[dict]:
    tracks = list(dict.fromkeys((LOOP, *sorted((each.track for each in slices), key=lambda track: track != DEVICE))))
    events = [_metadata("process_name", rank, 0, name=f"rank {rank}")]
    events.append(_metadata("process_sort_index", rank, 0, sort_index=rank))
    for number, track in enumerate(tracks):
        events.append(_metadata("thread_name", rank, number, name=track))
        events.append(_metadata("thread_sort_index", rank, number, sort_index=number))
    in_time = sorted(slices, key=lambda each: (each.start_ns, -each.stop_ns))  # each before those within it
    for each in in_time:
        times = {"ts": each.start_ns / 1000, "dur": (each.stop_ns - each.start_ns) / 1000}
        identity = {"ph": "X", "name": each.name, "pid": rank, "tid": tracks.index(each.track)}
        events.append({**identity, **times, "args": each.about})
    return events


def _metadata(what: str, rank: int, number: int, **content) -> dict:
    return {"ph": "M", "name": what, "pid": rank, "tid": number, "args": content}


def write_trace(path, ranks: dict[int, Sequence[Slice]]) -> None:
    """Write the trace in one step, so that a reader always finds a whole file. Raises OSError."""
    beside = f"{os.fspath(path)}.part"
    with suppress(FileNotFoundError):
        os.unlink(beside)  # of a killed writer, or a link to elsewhere
    try:
        with open(beside, "x", encoding="utf-8") as file:
            json.dump(trace_document(ranks), file, allow_nan=False)
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise


# ── read again ────────────────────────────────────────────────────────────────────────────────────────────────────────
def path_of(trace: str, folder: Path) -> Path:
    """Return the path of a trace; a bare name is in the run folder."""
    path = Path(trace)
    return folder / path if path.parent == Path() else path


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of the file, in microseconds."""

    phase: Annotated[str, Rules(key="ph")]
    name: str
    rank: Annotated[int, Rules(key="pid")]
    number: Annotated[int, Rules(key="tid")]
    start_us: Annotated[float, Rules(key="ts", low=0, high=LATEST_US)] = math.nan
    length_us: Annotated[float, Rules(key="dur", low=0, high=LATEST_US)] = math.nan
    named: Annotated[object, Rules(key="args.name")] = ""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The form of the file."""

    events: Annotated[tuple[TraceEvent, ...], Rules(key="traceEvents")]


def read_trace(path) -> dict[int, list[Slice]]:
    """Return the slices of each rank, in the order of time. Raises UsageError for a file that cannot be read or is no
    trace of ringtrain."""
    title = "trace of `ringtrain train --trace`"
    events = load(TraceFile, path, title, opener=files.open_nofollow).events
    tracks = {(each.rank, each.number): str(each.named) for each in events if each.name == "thread_name"}
    ranks: dict[int, list[Slice]] = {}
    try:
        for each in (each for each in events if each.phase == "X"):
            start, stop = round(1000 * each.start_us), round(1000 * (each.start_us + each.length_us))
            ranks.setdefault(each.rank, []).append(Slice(tracks[each.rank, each.number], each.name, start, stop))
    except (KeyError, ValueError) as error:
        raise UsageError(f"{plain(str(path))} is no {title}: an event has no track or time ({error})") from None
    return dict(sorted(ranks.items()))
