"""The search for a tuning file, and the check that it belongs to this machine."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ringtrain.allreduce.machine import RankLayout, differences, inspect_machine
from ringtrain.allreduce.tuning_table import RULES, Table, Tuning, TuningFile
from ringtrain.errors import UsageError, everywhere, plain
from ringtrain.records import load, read
from ringtrain.template import Lines, joined
from ringtrain.transport.base import Transport

VARIABLE = "RINGTRAIN_TUNING"


@dataclass(frozen=True, slots=True)
class TuningSource:
    """A tuning file and the origin of its path: "--tuning", the variable's name, or "" for the usual place."""

    path: Path
    asked_by: str


def tuning_source(path: str | None, environ: Mapping[str, str]) -> TuningSource:
    if path is not None:
        return TuningSource(Path(path), "--tuning")
    if environ.get(VARIABLE):
        return TuningSource(Path(environ[VARIABLE]), VARIABLE)
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config"
    return TuningSource(Path(home) / "ringtrain" / "tuning.json", "")


@dataclass(frozen=True, slots=True)
class FoundTuning:
    """The result of a search."""

    table: Table | None  # of this machine and layout; None without one
    remark: str = ""  # why a file in the usual place is ignored; "" without a reason


def find_tuning(transport: Transport, path: str | None) -> FoundTuning:
    """Return the tuning of this machine and layout. Collective: rank 0 reads it for all.

    A file that the user names must fit. A file in the usual place that does not fit is ignored, with a remark. One rank
    has nothing to choose, but a named file is read all the same. Raises UsageError, on all ranks.
    """
    machine, layout = inspect_machine(transport)
    outcome = _read_on_root(tuning_source(path, os.environ), machine, layout) if transport.rank == 0 else None
    answer = transport.gather_json(outcome)[0]
    if answer["error"]:
        raise everywhere(UsageError(Lines(answer["error"])))
    table = answer["table"] and read(Table, answer["table"], RULES)
    return FoundTuning(table, answer["remark"])


def _read_on_root(place: TuningSource, machine: dict, layout: RankLayout) -> dict:
    """Return JSON for the other ranks."""
    table, error = None, ""
    try:
        if place.asked_by or place.path.exists():
            tuning = read_tuning(place)
            if layout.ranks > 1:
                table = asdict(matching_table(tuning, place, machine, layout))
    except UsageError as problem:
        error = str(problem)
    except OSError as problem:  # its folder may not be looked into
        error = f"{_named(place)} cannot be read: {problem.strerror}"
    if error and not place.asked_by:
        return {"table": None, "error": "", "remark": plain(f"without tuning: {error}")}
    return {"table": table, "error": error, "remark": ""}


def matching_table(tuning: Tuning, place: TuningSource, machine: dict, layout: RankLayout) -> Table:
    """Return the table of this machine and layout. Raises UsageError."""
    check_machine(tuning, place, machine)
    if layout.name not in tuning.tables:
        known = ", ".join(tuning.tables) or "none"
        raise UsageError(
            f"{_named(place)} has no layout {layout.name} ({layout.words()}), only {known}: add it with `ringtrain "
            f"tune --tuning {place.path}`, started like this run"
        )
    return tuning.tables[layout.name]


def check_machine(tuning: Tuning, place: TuningSource, machine: dict) -> None:
    """Raise UsageError if the file is of another machine, field by field."""
    lines = differences(tuning.machine, machine)
    if lines:
        remedy = "`ringtrain tune` measures this one: --tuning names another file for it, --fresh replaces this one"
        raise UsageError(joined([f"{_named(place)} is of another machine:", *lines, remedy]))


def _named(place: TuningSource) -> str:
    if place.asked_by == VARIABLE:
        return f"tuning file {place.path} ({VARIABLE})"
    return f"tuning file {place.path}"


def read_tuning(place: TuningSource) -> Tuning:
    """Read a tuning file. Raises UsageError for a file that cannot be read or is no tuning, naming the fault."""
    return load(TuningFile, place.path, "file of `ringtrain tune`", RULES, named=_named(place)).tuning()
