"""The timeline of the ranks in Chrome's trace-event format: a file for Perfetto or chrome://tracing.

Each rank is a process of the trace, and has tracks: its loop, its device, and one for each bucket that it exchanges. On
a track slices follow one another, or nest.

Source: Trace Event Format, Google 2016: complete events ("X"), in microseconds, and metadata events ("M").
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOP, DEVICE = "loop", "device"
LEAST_NS = 1000  # shorter slices are left out


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


def path_of(trace: str, folder: Path) -> Path:
    """Return the path of a trace; a bare name is in the run folder."""
    path = Path(trace)
    return folder / path if path.parent == Path() else path
