"""Which tuning file a run goes by, and whether it is of this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtrain.allreduce import texts as texts
from ringtrain.allreduce.machine import RankLayout, differences, look
from ringtrain.allreduce.tuning_table import Table, Tuning, parse, table_of
from ringtrain.errors import UsageError, everywhere, plain
from ringtrain.parsing import parse_json, read_text
from ringtrain.transport.base import Transport

VARIABLE = "RINGTRAIN_TUNING"


@dataclass(frozen=True, slots=True)
class TuningSource:
    """A file, and who asked for it: "--tuning", the variable's name, or "" for the one that is looked for unasked."""

    path: Path
    asked_by: str


def place_of(given: str | None, environ: Mapping[str, str]) -> TuningSource:
    if given is not None:
        return TuningSource(Path(given), "--tuning")
    if environ.get(VARIABLE):
        return TuningSource(Path(environ[VARIABLE]), VARIABLE)
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config"
    return TuningSource(Path(home) / "ringtrain" / "tuning.json", "")


@dataclass(frozen=True, slots=True)
class FoundTuning:
    """table:  of this machine and layout; None where there is none
    remark: why a file that was looked for unasked is left aside; "" where there is nothing to say
    """

    table: Table | None
    remark: str = ""


def find_tuning(transport: Transport, given: str | None) -> FoundTuning:
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
    table = answer["table"] and table_of(texts.TUNING_OF_RANK_0, layout.name, answer["table"])
    return FoundTuning(table, answer["remark"])


def _read_here(place: TuningSource, machine: dict, layout: RankLayout) -> dict:
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
        error = texts.TUNING_UNREADABLE(file=_named(place), reason=problem.strerror)
    if error and not place.asked_by:
        return {"table": None, "error": "", "remark": plain(texts.TUNING_LEFT_OUT(error=error))}
    return {"table": table, "error": error, "remark": ""}


def fitting(tuning: Tuning, place: TuningSource, machine: dict, layout: RankLayout) -> Table:
    """The table of this machine and layout. Raises UsageError."""
    check_machine(tuning, place, machine)
    if layout.name not in tuning.tables:
        known = ", ".join(tuning.tables) or "none"
        raise UsageError(
            texts.NO_LAYOUT(file=_named(place), layout=layout.name, ranks=layout.words(), known=known, path=place.path)
        )
    return tuning.tables[layout.name]


def check_machine(tuning: Tuning, place: TuningSource, machine: dict) -> None:
    """Raises UsageError, field by field."""
    lines = differences(tuning.machine, machine)
    if lines:
        raise UsageError(texts.OTHER_MACHINE(file=_named(place), differences="\n".join(lines)))


def _named(place: TuningSource) -> str:
    if place.asked_by == VARIABLE:
        return texts.TUNING_FILE_OF(path=place.path, variable=VARIABLE)
    return texts.TUNING_FILE(path=place.path)


def read(place: TuningSource) -> Tuning:
    """Raises UsageError for a file that cannot be read or is no tuning, naming what is wrong in it."""
    where = _named(place)
    try:
        found = parse_json(read_text(place.path))
    except FileNotFoundError:
        raise UsageError(texts.NO_TUNING_FILE(file=where)) from None
    except OSError as error:
        raise UsageError(texts.TUNING_UNREADABLE(file=where, reason=error.strerror)) from None
    except ValueError as error:
        raise UsageError(texts.TUNING_NOT_JSON(file=where, error=error)) from None
    return parse(where, found)
