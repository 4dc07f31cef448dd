"""The run folders below a folder, and the summary of each, from few bytes: the first record of its log, the last ones,
its configuration, its outcome.

A log is read from its end back, until it has told the last iteration and the last evaluation. So the time of a list
depends on the number of runs, and not on their length.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path
from types import UnionType
from typing import BinaryIO

from ringtrain import parsing
from ringtrain.config.record import config_fields
from ringtrain.config.resolve import parse_run_file
from ringtrain.errors import ConfigError, UsageError, plain
from ringtrain.report.comparison.logs import CUT_SHORT, outcome_of
from ringtrain.report.comparison.rows import METRICS
from ringtrain.report.events import OF_THE_END
from ringtrain.report.records import LINE_BYTES, lines_of, read_record
from ringtrain.storage import files
from ringtrain.storage.run_folder import lock, outcome
from ringtrain.storage.run_folder.outcome import RUNNING, RunOutcome, read_outcome

LOG, CONFIG, CHECKPOINTS = "log.jsonl", "config.toml", "checkpoints"
# The results of a run, by their names in JSON and CSV: iteration and epoch are the finished ones.
RESULTS: dict[str, type] = {
    "name": str, "date": str, "outcome": str, "epoch": int, "iteration": int, "test_loss": float,
    "test_accuracy": float, **dict.fromkeys(METRICS, float), "images_per_s": float, "ranks": int,
}  # fmt: skip
FIRST_LINES = 100  # among which the start of a run is looked for
BLOCK_BYTES = 1 << 14  # read at once, from the end of a log
KEPT = ("start", "iteration", "end", "failed")  # kinds of records that tell the state of a run
ITERATION = b'"event": "iteration"'


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run."""

    folder: str  # its path
    results: Mapping  # by the names of :data:`RESULTS`; None where there is none
    options: Mapping = field(default_factory=dict)  # by the names of its configuration; empty where that cannot be read
    problem: str | None = None  # the reason of an end that is not "done", or None

    def value(self, name: str):
        """Return a result or an option; None if there is none."""
        return self.results[name] if name in RESULTS else self.options.get(name)


def find_runs(top: Path) -> tuple[list[Path], list[str]]:
    """Return the run folders at and below ``top``, by name; and a line for each folder that cannot be read.

    Hidden folders and linked ones are passed over. Raises UsageError if there is no folder ``top``.
    """
    if not top.is_dir():
        what = "not a folder" if os.path.lexists(top) else "not there"
        raise UsageError(
            f"{top} is {what}: name a run folder, or a folder with run folders; `ringtrain train` makes runs/"
        )
    run_folders, problems = [], []

    def note(error: OSError) -> None:
        problems.append(f"{plain(str(error.filename))} cannot be read: {error.strerror}")

    for path, folders, names in os.walk(top, onerror=note):
        begun = lock.NAME in names and CHECKPOINTS in folders  # maybe of a run that was killed before its first record
        if begun or LOG in names or outcome.NAME in names:
            run_folders.append(Path(path))
        folders[:] = [name for name in folders if not name.startswith(".") and name != CHECKPOINTS]
    return sorted(run_folders), problems


def list_runs(top: Path) -> tuple[list[RunSummary], list[str]]:
    """Return the runs at and below ``top``, named by their paths from there; and a line for each folder with a defect.

    Raises UsageError if there is no folder ``top``.
    """
    folders, notes = find_runs(top)
    runs = []
    for folder in folders:
        name = plain(str(folder.relative_to(top)) if folder != top else folder.resolve().name)
        run, problem = summarise(folder, name)
        runs += [run] if run else []
        notes += [problem] if problem else []
    return runs, notes


def summarise(folder: Path, name: str) -> tuple[RunSummary | None, str | None]:
    """Return the summary of a run folder, and a line about what is wrong with it; None where there is none.

    ``name``: of the run in the list. A folder without the start of a run has no summary.
    """
    became = None
    with suppress(UsageError):
        became = read_outcome(folder)
    start, last, why = _read_log(folder / LOG)
    if not start:
        return None, f"{name} is not listed: {_with_end(why, became)}"
    options, lacking = _options_of(folder / CONFIG)
    word, problem = _ended(folder, last, became)
    results = _results(start, last, became) | {"name": name, "outcome": word}
    summary = RunSummary(plain(str(folder)), {each: results.get(each) for each in RESULTS}, options, problem)
    return summary, f"{name} is listed without its options: {lacking}" if lacking else None


def _with_end(why: str, became: RunOutcome | None) -> str:
    """Return why a folder is not listed, and how its run ended if it tells."""
    if became is None or became.outcome == RUNNING:
        return why
    first_line, *_ = plain(became.text, "\n").split("\n")
    return f"{why} ({became.outcome}{': ' + first_line if first_line else ''})"


def _ended(folder: Path, last: Mapping, became: RunOutcome | None) -> tuple[str, str | None]:
    """Return how the run ended, in the words of a comparison, or "running"; and the reason."""
    word, reason = outcome_of(last.get("end"), last.get("failed")), last.get("failed", {}).get("text")
    if word != CUT_SHORT:
        return word, reason
    if became is None or became.outcome == RUNNING:
        return RUNNING if lock.is_held(folder) else CUT_SHORT, None
    return became.outcome, plain(became.text) or None


def _results(start: Mapping, last: Mapping, became: RunOutcome | None) -> dict:
    end, iteration = last.get("end", {}), last.get("iteration", {})
    done = end.get("iterations", iteration.get("iteration", start.get("resumed_at") or 0))
    test = end if (end.get("test_loss"), end.get("test_accuracy")) != (None, None) else last.get("test", {})
    an_epoch = start.get("iterations_per_epoch")
    ranks = became.ranks if became is not None else start.get("ranks")
    return {
        "date": _local(start.get("date")),
        "epoch": None if an_epoch == 0 else end.get("epochs", done // an_epoch if an_epoch else None),
        "iteration": done,
        "test_loss": test.get("test_loss"),
        "test_accuracy": test.get("test_accuracy"),
        **{name: (test.get("test_metrics") or {}).get(name) for name in METRICS},
        "images_per_s": end.get("images_per_s") or iteration.get("images_per_s") or None,
        "ranks": end.get("ranks", ranks),
    }


def _local(date: str | None) -> str | None:
    """Return the time of a start in the zone of this machine, as the names of run folders have it."""
    try:
        return datetime.fromisoformat(date or "").astimezone().isoformat(sep=" ")
    except (ValueError, OverflowError, OSError):
        return None


# ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _read_log(path: Path) -> tuple[dict, dict, str]:
    """Return the first start of a run, its last records, and why there are none."""
    try:
        with open(path, "rb", opener=files.open_nofollow) as log:
            start = _start(log)
            if not start:
                return {}, {}, f"its {LOG} does not begin with the start of a run"
            return start, _last(log, tested=bool(start.get("test_examples"))), ""
    except OSError as error:
        return {}, {}, _unreadable(LOG, error)


def _unreadable(name: str, error: OSError) -> str:
    missing = isinstance(error, FileNotFoundError)
    return f"it has no {name}" if missing else f"{name} cannot be read: {error.strerror}"


def _start(log: BinaryIO) -> dict:
    lines = takewhile(lambda line: line.endswith(b"\n"), islice(lines_of(log), FIRST_LINES))
    records = (read_record(line) for line in lines if b'"start"' in line)
    return next((record for record in records if record is not None and record["event"] == "start"), {})


def _last(log: BinaryIO, tested: bool) -> dict[str, dict]:
    """Return the last record of each kind of ``KEPT``, and as "test" the last evaluation.

    ``tested``: whether there is one to look for
    """
    last: dict[str, dict] = {}
    for line in lines_backwards(log):
        if ITERATION in line and "iteration" in last:
            continue
        record = read_record(line)
        kind = "" if record is None else record["event"]
        if record is None or (kind in OF_THE_END and "start" in last):
            continue  # the end of a process before the last one
        if kind in ("epoch", "evaluation") and record["test_loss"] is not None:
            last.setdefault("test", record)
        elif kind in KEPT:
            last.setdefault(kind, record)
        if _is_enough(last, tested):
            break
    return last


def _is_enough(last: Mapping, tested: bool) -> bool:
    scored = not tested or "test" in last or last.get("end", {}).get("test_loss") is not None
    return scored and ("iteration" in last or bool(last.get("end", {}).get("images_per_s")))


def lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, the last one first, each with its newline; up to a line longer than ``LINE_BYTES``."""
    position, size, rest = file.seek(0, os.SEEK_END), BLOCK_BYTES, b""
    while position and len(rest) <= LINE_BYTES:
        begin = max(0, position - size)
        file.seek(begin)
        lines = (file.read(position - begin) + rest).splitlines(keepends=True)
        yield from reversed(lines[1:])
        rest = lines[0] if lines else b""  # its beginning may lie before
        position, size = begin, min(2 * size, LINE_BYTES)
    if position == 0:
        yield rest


# ── the configuration ─────────────────────────────────────────────────────────────────────────────────────────────────
def _options_of(path: Path) -> tuple[dict, str | None]:
    """Return the options of a run, and why there are none.

    The file has no options that are None. Others that it lacks are of later versions of ringtrain: their defaults.
    """
    try:
        values = parse_run_file(parsing.read_text(path, opener=files.open_nofollow), path.name)
    except OSError as error:
        return {}, _unreadable(path.name, error)
    except (ConfigError, ValueError) as error:
        return {}, f"its {path.name} is damaged: {error}"
    absent = {
        name: None if isinstance(spec.type, UnionType) else spec.default for name, spec in config_fields().items()
    }
    return {name: _value(values.get(name, default)) for name, default in absent.items()}, None


def _value(value):
    """Return a value as JSON can hold it: a file may have been changed by hand."""
    if isinstance(value, list | tuple):
        return list(map(_value, value))
    known = isinstance(value, bool | int | str | None) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)
