"""``ringtrain tune``: its options, a sweep that becomes a tuning table, and the table in words: the choice of ``auto``
at each size, and its changes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

from ringtrain.allreduce.auto import Candidates, select_algorithm
from ringtrain.allreduce.catalogue import ALGORITHMS, AUTO, find_candidates, parse_algorithms, static_candidates
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.allreduce.machine import RankLayout, inspect_machine, machine_digest
from ringtrain.allreduce.tuning_file import TuningSource, check_machine, find_tuning, read_tuning, tuning_source
from ringtrain.allreduce.tuning_table import Table, TimeModel, Tuning, TuningRow
from ringtrain.bench.measure.rows import NOISY_CV, OK, REFUSED
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.model.fit import FittedModel
from ringtrain.bench.sweep.sizes import parse_names, swept
from ringtrain.bench.sweep.sweep import STREAMED, Result, Sweep, Watcher, sweep
from ringtrain.config.option import flag
from ringtrain.errors import UsageError
from ringtrain.humanize import format_bytes, format_seconds
from ringtrain.monitor.guarded_transport import bare
from ringtrain.records import read
from ringtrain.show.output import ProgressLine, complain, echo
from ringtrain.show.tables import text_lines
from ringtrain.storage import files
from ringtrain.transport.agree import keep_on_root, on_root, together
from ringtrain.transport.base import Transport

OPS = ("sum", "max", "min")  # a mean is a sum that is divided afterwards
HALVINGS = 12  # of the ratio of two sizes, to find where between them a choice changes
LOOKS = 4  # of them are made even where both ends take the same


@dataclass(frozen=True, slots=True)
class TuneOptions:
    begin: int = flag("Smallest buffer.", "1K", short="b", kind="bytes")
    end: int = flag("Largest buffer.", "64M", short="e", kind="bytes")
    factor: float = flag("Factor between sizes.", 4, short="f")
    iterations: int = flag("Timed iterations of a row.", 10, short="n", low=3)
    warm_up: int = flag("Untimed iterations before them.", 3, short="w", low=0)
    passes: int = flag("Passes over all sizes; the fastest counts.", 3, low=1)
    dtypes: str = flag("Types, separated by commas, or all.", "float32", name="dtype", short="d")
    ops: str = flag("sum, max, min, or all.", "sum", name="op", short="o")
    algorithms: str = flag("Candidates, separated by commas, or all that run here.", "all", name="algorithm")
    segment_bytes: int | None = flag("Bytes of a message. [256K in a node, 60000 between]", kind="bytes")
    budget_s: float = flag("Approximate seconds of a size in a pass.", 3, low=0)
    seed: int = flag("Seed of orders and inputs.", 0, low=0)
    tuning: str | None = flag(
        "File to write or explain. [RINGTRAIN_TUNING, or ~/.config/ringtrain/tuning.json]", metavar="FILE"
    )
    fresh: bool = flag("Replace the whole file.")
    explain: Sequence[int] | None = flag(
        "Measure nothing; explain the choice of auto at these sizes.", kind="bytes,..."
    )


def run(transport: Transport, options: TuneOptions) -> None:
    """Measure and write the table of this layout; or explain the choices of one that exists. Collective."""
    if options.explain:
        _explain(transport, options, options.explain)
        return
    asked = together(transport, lambda: sweep_of(transport, options))
    machine, layout = inspect_machine(transport)
    opened, _ = keep_on_root(transport, lambda: (_open(options, machine, layout), None))
    with transport.activity.during("a sweep"):
        watcher = Watcher(progress=ProgressLine()) if transport.rank == 0 else Watcher()
        result = sweep(bare(transport), asked, watcher)
    table = table_from(result, layout)
    on_root(transport, lambda: files.write(opened[0].path, opened[1].with_table(table).text().encode()))
    for dtype, op in table.groups():
        candidates = _candidates(transport, dtype)
        if transport.rank == 0:
            echo(*choice_lines(table, candidates, asked.sizes, dtype, op, whole=False))
    if transport.rank == 0:
        for line in [*barred(table), *doubts(result)]:
            complain(line)
        echo(f"written to {opened[0].path}")


def _candidates(transport: Transport, dtype: str) -> Candidates:
    """Return the algorithms that run here on a type; collective."""
    return find_candidates(transport, transport.allocate(1, TYPES[dtype].storage), dtype)


def _names(options: TuneOptions) -> tuple[list[str], list[str]]:
    """Return (types, operations). Raises UsageError."""
    return parse_names(options.dtypes, TYPES, "type"), parse_names(options.ops, OPS, "operation")


def sweep_of(transport: Transport, options: TuneOptions) -> Sweep:
    """Return the sweep that the options ask for. Collective. Raises UsageError."""
    (dtypes, ops), names = _names(options), parse_algorithms(options.algorithms)
    if AUTO in names:
        raise UsageError("this command tunes auto: name the candidates that it chooses among, or all")
    if transport.size == 1:
        raise UsageError("one rank has nothing to exchange: start it as `mpirun -np 4 ringtrain tune`")
    if options.algorithms == "all":
        running = {name for dtype in dtypes for name in _candidates(transport, dtype).candidates}
        names = [name for name in ALGORITHMS if name in running]
    protocol = Protocol(
        repeats=options.iterations, warm_up=options.warm_up, budget_s=options.budget_s, seed=options.seed
    )
    return Sweep(
        sizes=swept(options.begin, options.end, options.factor),
        algorithms=names,
        dtypes=dtypes,
        ops=ops,
        protocol=protocol,
        passes=options.passes,
        memories=STREAMED,  # the others work in the memory of the run alone
        segment_bytes=options.segment_bytes,
    )


def _open(options: TuneOptions, machine: dict, layout: RankLayout) -> tuple[TuningSource, Tuning]:
    """Return (the source of the tuning file, its content); check now that it can be written. Raises UsageError."""
    source = tuning_source(options.tuning, os.environ)
    if not source.asked_by:
        source.path.parent.mkdir(parents=True, exist_ok=True)
    folder = source.path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{source.path} cannot be written: there is no folder {folder}")
    if source.path.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{source.path} cannot be written: it is a folder, or its folder is not writable")
    tuning = Tuning(machine)
    if source.path.exists() and not options.fresh:
        tuning = read_tuning(source)
        check_machine(tuning, source, machine)
    facts = "; ".join(f"{name} {value}" for name, value in machine.items())
    echo(f"tuning {layout.words()} (layout {layout.name}) of machine {machine_digest(machine)}: {facts}")
    return source, tuning


def _explain(transport: Transport, options: TuneOptions, sizes: Sequence[int]) -> None:
    """Show the choices of this layout under mpirun, and in one process those of every layout of the file."""
    pairs = list(product(*together(transport, lambda: _names(options))))
    if transport.size == 1:
        on_root(transport, lambda: _explain_file(options, sizes, pairs))
        return
    tuning = find_tuning(transport, options.tuning)
    for dtype, op in pairs:
        candidates = _candidates(transport, dtype)
        if transport.rank == 0:
            echo(*choice_lines(tuning.table, candidates, sizes, dtype, op, whole=True))
    if transport.rank == 0 and tuning.remark:
        complain(tuning.remark)


def _explain_file(options: TuneOptions, sizes: Sequence[int], pairs: list[tuple[str, str]]) -> None:
    source = tuning_source(options.tuning, os.environ)
    tuning = read_tuning(source)
    echo(f"{source.path}: machine {machine_digest(tuning.machine)}, {'; '.join(tuning.machine.values())}")
    for name, table in tuning.tables.items():
        echo(f"layout {name}, measured {table.at}")
        for dtype, op in pairs:
            echo(*choice_lines(table, static_candidates(table.layout, dtype), sizes, dtype, op, whole=True))


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
        if whole and choice.times_s:
            by_time = sorted((time, name) for name, time in choice.times_s.items())
            lines.append("    " + ", ".join(f"{name} {format_seconds(time)}" for time, name in by_time))

    @cache
    def name_at(nbytes: int) -> str:
        return select_algorithm(nbytes, dtype, op, candidates, table).algorithm

    ends = pairwise(choices)
    return lines + [f"  {change}" for low, high in ends for change in _changes(name_at, low, high, HALVINGS)]


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
