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
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from typing import Annotated

from ringtrain.allreduce.machine import FIELDS, RankLayout
from ringtrain.records import SOME, Count, Rules

FORMAT = 1
TITLE = "ringtrain tuning"


@dataclass(frozen=True, slots=True)
class TuningRow:
    """The time of an algorithm at a size. Units: bytes of a rank's buffer, seconds."""

    algorithm: str
    dtype: str
    op: str
    bytes: Count
    median_s: Annotated[float, Rules(low=1e-12)]
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
    """The measurements of one type and operation, for algorithms without a wrong row."""

    name: tuple[str, str]
    points: dict[str, list[tuple[int, float]]]  # (bytes, seconds) by size, by algorithm
    models: dict[str, list[TimeModel]]  # by their first sizes, by algorithm


@dataclass(frozen=True, slots=True)
class Table:
    """All measurements of one layout. ``at``: the time of the measurement, for people; ``name``: of the layout."""

    ranks: Count
    nodes: Count
    at: str
    rows: Annotated[tuple[TuningRow, ...], Rules(lengths=SOME)]
    models: tuple[TimeModel, ...] = ()
    name: str = ""

    @property
    def layout(self) -> RankLayout:
        return RankLayout(self.name, self.ranks, self.nodes)

    def groups(self) -> list[tuple[str, str]]:
        """Return the pairs (type, operation), in the order of the rows."""
        return list(dict.fromkeys((row.dtype, row.op) for row in self.rows))

    def group(self, dtype: str, op: str) -> TuningGroup:
        """Return the measurements of that type and operation; without any, the same operation's on another type,
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


@dataclass(frozen=True, slots=True)
class Tuning:
    """A whole file: tables by the name of their layout."""

    machine: dict[str, str]
    tables: dict[str, Table] = field(default_factory=dict)

    def with_table(self, table: Table) -> "Tuning":
        """Return the tuning with a new table, which replaces the rows of the same layout, types and operations."""
        old, fresh = self.tables.get(table.name), set(table.groups())
        if old is not None:
            rows = [row for row in old.rows if (row.dtype, row.op) not in fresh]
            models = [model for model in old.models if (model.dtype, model.op) not in fresh]
            table = replace(table, rows=(*rows, *table.rows), models=(*models, *table.models))
        return Tuning(self.machine, {**self.tables, table.name: table})

    def text(self) -> str:
        layouts = {name: asdict(self.tables[name]) for name in sorted(self.tables)}
        for layout in layouts.values():
            del layout["name"]
        return json.dumps({TITLE: FORMAT, "machine": self.machine, "layouts": layouts}, indent=1) + "\n"


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────
RULES = {"low": 0, "high": 1e15}  # of bytes and seconds: results computed from them are finite, too


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningFile:
    """The form of the file."""

    version: Annotated[int, Rules(key=TITLE, low=FORMAT, high=FORMAT, wanted=f"{FORMAT}: tune again")]
    machine: make_dataclass("Machine", [(name, str) for name in FIELDS])  # type: ignore[valid-type]
    layouts: dict[str, Table]

    def tuning(self) -> Tuning:
        return Tuning(asdict(self.machine), {name: replace(each, name=name) for name, each in self.layouts.items()})
