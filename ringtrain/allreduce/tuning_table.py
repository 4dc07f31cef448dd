"""The tuning file: the measurements of ``ringtrain tune`` on one machine, by the layout of the ranks.

    {"ringtrain tuning": 1, "machine": {cpu, cores, library, transport},
     "layouts": {"1x2": {"ranks": 2, "nodes": 1, "at": …,
                         "rows":   [{algorithm, dtype, op, bytes, median_s, correct} …],
                         "models": [{algorithm, dtype, op, from_bytes, start_s, s_per_byte} …]}}}

Rows are of buffers in place, ``bytes`` on each rank. A model is a line, or several, each from its size on.
``correct``: every element is right, and all ranks have the same bits. Other keys are ignored and not kept.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from ringtrain.allreduce import texts
from ringtrain.allreduce.machine import FIELDS, RankLayout
from ringtrain.errors import UsageError

FORMAT = 1
TITLE = "ringtrain tuning"


@dataclass(frozen=True, slots=True)
class TuningRow:
    """The time of an algorithm at a size. Units: bytes of a rank's buffer, seconds."""

    algorithm: str
    dtype: str
    op: str
    bytes: int
    median_s: float
    correct: bool


@dataclass(frozen=True, slots=True)
class TimeModel:
    """A linear model from ``from_bytes`` on: t(n) = start + n · s_per_byte"""

    algorithm: str
    dtype: str
    op: str
    from_bytes: float
    start_s: float
    s_per_byte: float


def predict_s(models: Sequence[TimeModel], nbytes: float) -> float:
    """Return the time of ``nbytes`` by one algorithm's models, which are sorted by their first sizes, from 0."""
    model = next(model for model in reversed(models) if model.from_bytes <= nbytes or model is models[0])
    return model.start_s + nbytes * model.s_per_byte


@dataclass(frozen=True, slots=True)
class TuningGroup:
    """The measurements of one type and operation, for algorithms without a wrong row.

    points: (bytes, seconds) by size, by algorithm
    models: by their first sizes, by algorithm
    """

    name: tuple[str, str]
    points: dict[str, list[tuple[int, float]]]
    models: dict[str, list[TimeModel]]


@dataclass(frozen=True, slots=True)
class Table:
    """All measurements of one layout. ``at``: the time of the measurement, for people."""

    layout: RankLayout
    at: str
    rows: tuple[TuningRow, ...]
    models: tuple[TimeModel, ...] = ()

    def groups(self) -> list[tuple[str, str]]:
        """Return the pairs (type, operation), in the order of the rows."""
        return list(dict.fromkeys((row.dtype, row.op) for row in self.rows))

    def group(self, dtype: str, op: str) -> TuningGroup:
        """Return the measurements of that type and operation; without any, those of the same operation on another type,
        or any: the number of bytes matters more than their meaning.
        """
        known = self.groups()
        near = [name for name in known if name == (dtype, op)] or [name for name in known if name[1] == op] or known
        rows = [row for row in self.rows if (row.dtype, row.op) == near[0]]
        wrong = {row.algorithm for row in rows if not row.correct}
        points: dict[str, list] = {row.algorithm: [] for row in rows if row.algorithm not in wrong}
        for row in sorted(rows, key=lambda row: row.bytes):
            if row.algorithm not in wrong:
                points[row.algorithm].append((row.bytes, row.median_s))
        models: dict[str, list[TimeModel]] = {}
        for model in sorted(self.models, key=lambda model: model.from_bytes):
            if (model.dtype, model.op) == near[0]:
                models.setdefault(model.algorithm, []).append(model)
        return TuningGroup(near[0], points, models)

    def as_dict(self) -> dict:
        return {
            "ranks": self.layout.ranks,
            "nodes": self.layout.nodes,
            "at": self.at,
            "rows": [asdict(row) for row in self.rows],
            "models": [asdict(model) for model in self.models],
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """A whole file: tables by the name of their layout."""

    machine: dict[str, str]
    tables: dict[str, Table] = field(default_factory=dict)

    def with_table(self, table: Table) -> "Tuning":
        """Return the tuning with a new table, which replaces the rows of the same layout, types and operations."""
        old, name, fresh = self.tables.get(table.layout.name), table.layout.name, set(table.groups())
        if old is not None:
            rows = [row for row in old.rows if (row.dtype, row.op) not in fresh]
            models = [model for model in old.models if (model.dtype, model.op) not in fresh]
            table = Table(table.layout, table.at, (*rows, *table.rows), (*models, *table.models))
        return Tuning(self.machine, {**self.tables, name: table})

    def text(self) -> str:
        layouts = {name: self.tables[name].as_dict() for name in sorted(self.tables)}
        return json.dumps({TITLE: FORMAT, "machine": self.machine, "layouts": layouts}, indent=1) + "\n"


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────
MOST = 1e15  # bytes or seconds: results computed from them are finite, too
KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number above 0",
    float: "a number, not below 0; a time, above 0; at most 1e15",
}


def parse_tuning(where: str, found) -> Tuning:
    """Return the tuning in decoded JSON. Raises UsageError."""
    if not isinstance(found, dict) or TITLE not in found:
        raise UsageError(f"{where} is not a tuning file, it has no {TITLE!r}: `ringtrain tune` makes one")
    if found[TITLE] != FORMAT:
        raise UsageError(f"{where} has format {found[TITLE]!r}, and this ringtrain reads {FORMAT}: tune again")
    machine = _get(where, found, "machine", dict)
    layouts = _get(where, found, "layouts", dict)
    fields = {name: _get(f"{where}: machine", machine, name, str) for name in FIELDS}
    return Tuning(fields, {name: table_of(where, name, table) for name, table in layouts.items()})


def table_of(where: str, name: str, table) -> Table:
    """Return the table of one layout in decoded JSON. Raises UsageError."""
    at = f"{where}: layouts.{name}"
    if not isinstance(table, dict):
        raise UsageError(texts.NOT_OBJECT(where=at, found=table))
    rows = tuple(_record(f"{at}.rows[{i}]", TuningRow, row) for i, row in enumerate(_get(at, table, "rows", list)))
    models = tuple(
        _record(f"{at}.models[{i}]", TimeModel, row) for i, row in enumerate(_get(at, table, "models", list))
    )
    if not rows:
        raise UsageError(f"{at} has no rows: tune again")
    layout = RankLayout(name, _get(at, table, "ranks", int), _get(at, table, "nodes", int))
    return Table(layout, _get(at, table, "at", str), rows, models)


def _record(where: str, kind: type, found):
    if not isinstance(found, dict):
        raise UsageError(texts.NOT_OBJECT(where=where, found=found))
    return kind(**{name: _get(where, found, name, wanted) for name, wanted in kind.__annotations__.items()})


def _get(where: str, found: dict, name: str, kind: type):
    if name not in found:
        raise UsageError(f"{where} has no {name!r}: tune again")
    value = found[name]
    if kind is float and type(value) is int:
        value = float(value)
    least = 1 if kind is int else 1e-12 if name == "median_s" else 0
    in_range = kind not in (int, float) or (isinstance(value, int | float) and least <= value <= MOST)
    if type(value) is not kind or not in_range:
        raise UsageError(f"{where}.{name} is {value!r}; wanted {KINDS[kind]}")
    return value
