"""Conversion of a sweep to a tuning table, and the table in words: the choice of ``auto`` at each size, and its
changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from ringtrain.allreduce.auto import AlgorithmChoice, Candidates, select_algorithm
from ringtrain.allreduce.machine import RankLayout
from ringtrain.allreduce.tuning_table import Table, TimeModel, TuningRow
from ringtrain.bench.measure.rows import NOISY_CV, OK, REFUSED
from ringtrain.bench.model.fit import FittedModel
from ringtrain.bench.sweep.sweep import Result
from ringtrain.humanize import format_bytes, format_seconds
from ringtrain.records import read
from ringtrain.show.tables import text_lines

HALVINGS = 12  # of the ratio of two sizes, to find where between them a choice changes
LOOKS = 4  # of them are made even where both ends take the same


def table_from(result: Result, layout: RankLayout) -> Table:
    """Return the table of a checked sweep in place, without refused rows."""
    rows = tuple(_row(row) for row in result.rows if row["status"] != REFUSED)
    models = tuple(_models(result.header["fits"]))
    return Table(layout.ranks, layout.nodes, result.header["at"], rows, models, layout.name)


def _row(row: dict) -> TuningRow:
    """Return a row. An algorithm with different bits on different ranks is wrong too: copies of a model would drift
    apart.
    """
    correct = row["status"] == OK and bool(row["same_on_ranks"])
    return TuningRow(row["algorithm"], row["dtype"], row["op"], row["bytes"], row["median_s"], correct)


def _models(fits: Iterable[dict]) -> Iterator[TimeModel]:
    for group in fits:
        for name, fitted in group["models"].items():
            model = read(FittedModel, fitted)
            for regime in model.regimes:
                yield TimeModel(name, group["dtype"], group["op"], regime.first_bytes, *model.line(regime.first_bytes))


def barred(table: Table) -> list[str]:
    """Return a line for each algorithm that may not win, with its first wrong size."""
    wrong: dict[tuple, int] = {}
    for row in table.rows:
        if not row.correct:
            wrong.setdefault((row.algorithm, row.dtype, row.op), row.bytes)
    return [
        (
            f"{algorithm} was wrong, or differed between ranks, at {format_bytes(nbytes)} of {dtype} {op}: auto takes "
            "it at no size"
        )
        for (algorithm, dtype, op), nbytes in wrong.items()
    ]


def doubts(result: Result) -> list[str]:
    """Return a line if the machine was too busy for reliable times."""
    measured = [row for row in result.rows if row["status"] != REFUSED]
    noisy = sum(row["cv"] > NOISY_CV for row in measured)
    crowded = result.header["crowded"]
    lines = [f"{crowded}: times include the scheduler's"] if crowded else []
    if noisy > len(measured) / 2:
        problem = f"{noisy} of {len(measured)} rows vary by more than {NOISY_CV:.0%}, even in their quietest pass"
        lines.append(f"{problem}: tune again when the machine is idle")
    return lines


def choice_lines(
    table: Table | None, candidates: Candidates, sizes: Sequence[int], dtype: str, op: str, whole: bool
) -> list[str]:
    """Return a line a size, then the sizes at which the choice changes. ``whole``: with the times of all candidates."""
    choices = {nbytes: select_algorithm(nbytes, dtype, op, candidates, table) for nbytes in sorted(sizes)}
    cells = ((format_bytes(nbytes), choice.algorithm, choice.why) for nbytes, choice in choices.items())
    lines = [f"{dtype} {op}, {candidates.layout.words()}:"]
    for line, choice in zip(text_lines(cells, "rll"), choices.values(), strict=True):
        lines.append(f"  {line}")
        lines += [f"    {_all_times(choice)}"] if whole and choice.times_s else []

    @cache
    def name_at(nbytes: int) -> str:
        return select_algorithm(nbytes, dtype, op, candidates, table).algorithm

    ends = pairwise(choices)
    return lines + [f"  {change}" for low, high in ends for change in _changes(name_at, low, high, HALVINGS)]


def _all_times(choice: AlgorithmChoice) -> str:
    by_time = sorted((time, name) for name, time in choice.times_s.items())
    return ", ".join(f"{name} {format_seconds(time)}" for time, name in by_time)


def _changes(name_at: Callable[[int], str], low: int, high: int, halvings: int) -> Iterator[str]:
    """Return the sizes from which another algorithm is taken, to a few percent: every change between two sizes, also if
    both ends take the same.
    """
    before, after = name_at(low), name_at(high)
    if before == after and halvings <= HALVINGS - LOOKS:
        return
    if halvings:
        middle = round((low * high) ** 0.5)
        yield from _changes(name_at, low, middle, halvings - 1)
        yield from _changes(name_at, middle, high, halvings - 1)
    elif before != after:
        yield f"{before} gives way to {after} at {format_bytes(high)}"
