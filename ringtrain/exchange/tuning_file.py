"""Which tuning file a run goes by, and whether it is of this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import UsageError, everywhere, plain
from ringtrain.exchange.machine import Layout, differences, look
from ringtrain.exchange.tuning import Table, Tuning, parse, table_of
from ringtrain.parsing import parse_json, read_text
from ringtrain.transport.base import Transport

VARIABLE = "RINGTRAIN_TUNING"


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and who asked for it: "--tuning", the variable's name, or "" for the one that is looked for unasked."""

    path: Path
    asked_by: str


def place_of(given: str | None, environ: Mapping[str, str]) -> Place:
    if given is not None:
        return Place(Path(given), "--tuning")
    if environ.get(VARIABLE):
        return Place(Path(environ[VARIABLE]), VARIABLE)
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config"
    return Place(Path(home) / "ringtrain" / "tuning.json", "")


@dataclass(frozen=True, slots=True)
class Found:
    """table:  of this machine and layout; None where there is none
    remark: why a file that was looked for unasked is left aside; "" where there is nothing to say
    """

    table: Table | None
    remark: str = ""


def find_tuning(transport: Transport, given: str | None) -> Found:
    """What is known of this machine and layout. Collective: rank 0 reads, and tells the others.

    A file that was asked for must fit. One that lies in its usual place and does not fit is left aside, with a remark.
    One rank has nothing to choose, but a file that was asked for is read all the same.
    Raises UsageError, on all ranks.
    """
    machine, layout = look(transport)
    own = _read_here(place_of(given, os.environ), machine, layout) if transport.rank == 0 else None
    answer = transport.gather_json(own)[0]
    if answer["error"]:
        raise everywhere(UsageError(answer["error"]))
    table = answer["table"] and table_of("rank 0's tuning", layout.name, answer["table"])
    return Found(table, answer["remark"])


def _read_here(place: Place, machine: dict, layout: Layout) -> dict:
    """JSON for the other ranks."""
    table, error = None, ""
    try:
        if place.asked_by or place.path.exists():
            tuning = read(place)
            if layout.ranks > 1:
                table = fitting(tuning, place, machine, layout).as_dict()
    except UsageError as problem:
        error = str(problem)
    except OSError as problem:  # its folder may not be looked into
        error = f"{_named(place)} cannot be read: {problem.strerror}"
    if error and not place.asked_by:
        return {"table": None, "error": "", "remark": plain(f"without tuning: {error}")}
    return {"table": table, "error": error, "remark": ""}


def fitting(tuning: Tuning, place: Place, machine: dict, layout: Layout) -> Table:
    """The table of this machine and layout. Raises UsageError."""
    check_machine(tuning, place, machine)
    if layout.name not in tuning.tables:
        known = ", ".join(tuning.tables) or "none"
        raise UsageError(
            f"{_named(place)} has no layout {layout.name} ({layout.words()}), but {known}: add it by `ringtrain tune "
            f"--tuning {place.path}`, started as this was"
        )
    return tuning.tables[layout.name]


def check_machine(tuning: Tuning, place: Place, machine: dict) -> None:
    """Raises UsageError, field by field."""
    lines = differences(tuning.machine, machine)
    if lines:
        told = "\n".join(lines)
        raise UsageError(
            f"{_named(place)} is of another machine:\n{told}\n`ringtrain tune` measures this one: --tuning names "
            "another file for it, --fresh replaces this one"
        )


def _named(place: Place) -> str:
    return f"tuning file {place.path}" + (f" ({place.asked_by})" if place.asked_by == VARIABLE else "")


def read(place: Place) -> Tuning:
    """Raises UsageError for a file that cannot be read or is no tuning, naming what is wrong in it."""
    where = _named(place)
    try:
        found = parse_json(read_text(place.path))
    except FileNotFoundError:
        raise UsageError(f"there is no {where}: `mpirun -np N ringtrain tune` makes one; run it first") from None
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error}): make one by `ringtrain tune`") from None
    return parse(where, found)
