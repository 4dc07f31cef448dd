"""Summaries of runs from their logs: figures of the end, and curves against time, examples and bytes.

A log may be cut short (the run was killed), may hold several starts (the run was resumed), and may come from an older
ringtrain: missing figures are None, and only a file that is no log at all is refused.

Each process of a resumed run starts its time stamps and bytes at zero; here they are added up, without the time
between.
"""

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from ringtrain.errors import DivergedError, UsageError, plain
from ringtrain.report.events import Iteration, RanksLost
from ringtrain.report.records import lines_of, read_record
from ringtrain.report.screen.words import ranks_lost
from ringtrain.storage.files import open_nofollow

LOG = "log.jsonl"
CUT_SHORT = "cut short"
LARGEST_BYTES = 1 << 30  # of a log: four million iterations


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a run, and its scores; accuracies are fractions."""

    seconds: float  # of training, evaluating and saving, from the first iteration on
    examples: int  # trained on so far, over all ranks
    nbytes: float | None  # sent by all ranks; None if unknown
    loss: float | None
    accuracy: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    iteration: int = 0
    lr: float | None = None  # of an iteration; None of a test
    images_per_s: float | None = None  # of an iteration; None of a test


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run's log. name: its name in the comparison. start: its last ``start`` record, a dict like all records."""

    name: str
    folder: str
    start: dict
    train: Sequence[Point]  # in the order of time
    test: Sequence[Point]  # in the order of time
    iterations: int
    end: dict | None  # the record of the last process, or None
    ranks: dict | None  # the record of the last process, or None
    failed: dict | None  # the record of the last process, or None
    last_rate: float | None
    exchange: dict | None = None  # the record of the last process, or None
    notes: Sequence[str] = ()  # what the run has told, in words

    @property
    def outcome(self) -> str:
        """ "done", "early stop", "interrupted", "diverged", "failed" for any other error, or "cut short"."""
        return outcome_of(self.end, self.failed)


def outcome_of(end: Mapping | None, failed: Mapping | None) -> str:
    """Return the outcome of a run by its last record, if there is one."""
    if end:
        return end.get("reason", "done")
    if failed:
        return "diverged" if failed.get("error") == DivergedError.__name__ else "failed"
    return CUT_SHORT


@dataclass(slots=True)
class _Process:
    """The records of one process: its start, and those after it."""

    start: dict
    iterations: list[dict] = field(default_factory=list)
    tests: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last: dict = field(default_factory=dict)  # of each kind that is written once


def read_run(folder, name: str) -> RunLog:
    """Read the run in a folder. Raises UsageError if there is none."""
    processes = _read_processes(folder)
    train, test = _points(processes)
    last = processes[-1]
    return RunLog(
        name=plain(name),
        folder=str(folder),
        start=last.start,
        train=train,
        test=test,
        iterations=_finished(processes),
        **{kind: last.last.get(kind) for kind in ("end", "ranks", "failed", "exchange")},
        last_rate=last.iterations[-1]["images_per_s"] if last.iterations else None,
        notes=[note for process in processes for note in process.notes],
    )


def read_iterations(folder) -> list[dict]:
    """Read the run in a folder as a row an iteration: the fields of its record, and after an evaluation ``test_loss``,
    ``test_accuracy`` and further metrics. ``seconds`` is as in :class:`Point`. Raises UsageError if there is none.
    """
    processes = _read_processes(folder)
    records = (each for process in processes for each in process.iterations)
    rows = {
        record["iteration"]: {each.name: record.get(each.name) for each in fields(Iteration)}
        | {"seconds": point.seconds}
        for record, point in zip(records, _points(processes)[0], strict=True)
    }
    for record in (each for process in processes for each in process.tests):
        row = rows.get(record["iteration"])
        if row is not None and record["test_loss"] is not None:
            row |= {name: record[name] for name in ("test_loss", "test_accuracy")}
            row |= {plain(name): value for name, value in (record.get("test_metrics") or {}).items() if name not in row}
    return list(rows.values())


def _read_processes(folder) -> list["_Process"]:
    processes = _processes(_records(Path(folder) / LOG))
    if not processes:
        raise _no_run(folder, f"its {LOG} has no start of a run")
    return processes


def _records(path: Path) -> list[dict]:
    try:
        with open(path, "rb", opener=open_nofollow) as log:
            size = os.fstat(log.fileno()).st_size
            if size > LARGEST_BYTES:
                raise UsageError(
                    f"{path} has {size:,} bytes; a log that is read as a whole has at most {LARGEST_BYTES:,}: give a "
                    "run folder with a part of it"
                )
            return [record for record in map(read_record, lines_of(log)) if record is not None]
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no {LOG}" if path.parent.exists() else "it is not there"
        raise _no_run(path.parent, why) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _no_run(folder, why: str) -> UsageError:
    return UsageError(f"{folder} is not a run's folder: {why}. Give folders that `ringtrain train` made")


def _processes(records: Sequence[dict]) -> list[_Process]:
    processes: list[_Process] = []
    for record in records:
        kind = record["event"]
        if kind == "start":
            processes.append(_Process(record))
        elif not processes:
            continue
        elif kind == "iteration":
            processes[-1].iterations.append(record)
        elif kind in ("epoch", "evaluation"):
            processes[-1].tests.append(record)
        elif kind == "note":
            processes[-1].notes.append(record["text"])
        elif kind == "lost":
            processes[-1].notes.append(
                ranks_lost(RanksLost(**{each.name: record[each.name] for each in fields(RanksLost)}))
            )
        else:
            processes[-1].last[kind] = record
    return processes


def _finished(processes: Sequence[_Process]) -> int:
    ended = processes[-1].last.get("end", {}).get("iterations")
    counts = [process.iterations[-1]["iteration"] for process in processes if process.iterations]
    return ended if ended is not None else max(counts, default=processes[-1].start.get("resumed_at") or 0)


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _points(processes: Sequence[_Process]) -> tuple[list[Point], list[Point]]:
    train: list[Point] = []
    test: list[Point] = []
    seconds, examples = 0.0, 0
    nbytes: float | None = 0.0  # None: not counted
    for process in processes:
        origin = _origin(process) - seconds
        seen = _examples(process, examples)
        known = _bytes(process, seen, examples, nbytes)
        for each in process.iterations:
            at = seen[each["iteration"]]
            when, rest = each["seconds"] - origin, {name: each[name] for name in ("iteration", "lr", "images_per_s")}
            train.append(Point(when, at, _between(known, at), each["loss"], each["accuracy"], **rest))
        for each in process.tests:
            at = seen.get(each["iteration"], examples)
            if each.get("test_loss") is not None or each.get("test_accuracy") is not None:
                scores = each["test_loss"], each["test_accuracy"], each.get("test_metrics") or {}
                test.append(Point(each["seconds"] - origin, at, _between(known, at), *scores, each["iteration"]))
        stamps = [each["seconds"] for each in (*process.iterations[-1:], *process.tests[-1:])]
        stamps += [each["seconds"] for each in (process.last.get("end"),) if each]
        seconds = max(stamps, default=origin + seconds) - origin
        examples = max(seen.values(), default=examples)
        nbytes = known[-1][1] if known else None
    return train, test


def _origin(process: _Process) -> float:
    """Return the time stamp at which the first iteration began: compiling is not training."""
    if not process.iterations:
        return 0.0
    first = process.iterations[0]
    rate = first.get("images_per_s")
    return first["seconds"] - (first["examples"] / rate if rate else 0.0)


def _examples(process: _Process, before: int) -> dict[int, int]:
    """Return iteration → number of examples trained on at its end."""
    seen = {}
    for each in process.iterations:
        before += each["examples"]
        seen[each["iteration"]] = before
    return seen


def _bytes(process: _Process, seen: dict[int, int], examples: int, nbytes: float | None) -> list[tuple[int, float]]:
    """Return (examples, bytes) at each point with known bytes, the start first; empty if the run counted none."""
    points = [(seen[each["iteration"]], each.get("bytes_sent")) for each in process.tests if each["iteration"] in seen]
    if seen and "ranks" in process.last:
        by_rank = process.last["ranks"]["bytes_sent"]
        points.append((max(seen.values()), None if None in by_rank else sum(by_rank)))
    counted = [(at, sent) for at, sent in points if sent is not None]
    if nbytes is None or not points or len(counted) < len(points):
        return []
    return [(examples, nbytes), *((at, nbytes + sent) for at, sent in counted)]


def _between(known: Sequence[tuple[int, float]], at: int) -> float | None:
    """Interpolate the bytes at this many examples; None outside the known points."""
    index = bisect_left(known, at, key=lambda pair: pair[0])
    if index == len(known):
        return None
    (x1, y1), (x0, y0) = known[index], known[max(index - 1, 0)]
    return y1 if at == x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def run_names(folders: list[Path]) -> list[str]:
    """Return the folders' names, each with as many parents as make all names different."""
    for depth in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [str(folder) for folder in folders]
