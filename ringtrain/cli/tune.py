"""The command ``ringtrain tune``."""

import os
from dataclasses import dataclass
from functools import partial

import click

from ringtrain.allreduce import catalogue
from ringtrain.allreduce.auto import Candidates
from ringtrain.allreduce.catalogue import ALGORITHMS, find_candidates, static_candidates
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.allreduce.machine import inspect_machine, machine_digest
from ringtrain.allreduce.tuning_file import check_machine, find_tuning, read_tuning, tuning_source
from ringtrain.allreduce.tuning_table import Tuning
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.sizes import parse_names, swept
from ringtrain.bench.sweep.sweep import STREAMED, Sweep, Watcher, sweep
from ringtrain.bench.tune import barred, choice_lines, doubts, table_from
from ringtrain.cli import texts
from ringtrain.cli.output import echo
from ringtrain.cli.progress import ProgressLine
from ringtrain.cli.values import Size, Sizes
from ringtrain.cli.world import in_world
from ringtrain.errors import UsageError
from ringtrain.monitor.guarded_transport import bare
from ringtrain.storage import files
from ringtrain.transport.agree import on_root, together
from ringtrain.transport.base import Transport

OPS = ("sum", "max", "min")  # a mean is a sum that is divided afterwards


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of the command."""

    begin: int
    end: int
    factor: float
    iterations: int
    warm_up: int
    passes: int
    dtypes: str
    ops: str
    algorithms: str
    segment_bytes: int | None
    budget_s: float
    seed: int
    tuning: str | None
    fresh: bool
    explain: list[int] | None


@click.command()
@click.option("-b", "--begin", type=Size(), default="1K", show_default=True, help="Smallest buffer.")
@click.option("-e", "--end", type=Size(), default="64M", show_default=True, help="Largest buffer.")
@click.option("-f", "--factor", type=float, default=4, show_default=True, help="Factor between sizes.")
@click.option(
    "-n", "--iterations", type=click.IntRange(3), default=10, show_default=True, help="Timed iterations of a row."
)
@click.option(
    "-w", "--warm-up", type=click.IntRange(0), default=3, show_default=True, help="Untimed iterations before them."
)
@click.option(
    "--passes", type=click.IntRange(1), default=3, show_default=True, help="Passes over all sizes; the fastest counts."
)
@click.option(
    "-d", "--dtype", "dtypes", default="float32", show_default=True, help="Types, separated by commas, or all."
)
@click.option("-o", "--op", "ops", default="sum", show_default=True, help="sum, max, min, or all.")
@click.option(
    "--algorithm",
    "algorithms",
    default="all",
    show_default=True,
    help="Candidates, separated by commas, or all that run here.",
)
@click.option("--segment-bytes", type=Size(), help="Bytes of a message. [256K in a node, 60000 between]")
@click.option(
    "--budget-s",
    type=click.FloatRange(0),
    default=3,
    show_default=True,
    help="Approximate seconds of a size in a pass.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of orders and inputs.")
@click.option(
    "--tuning", metavar="FILE", help="File to write or explain. [RINGTRAIN_TUNING, or ~/.config/ringtrain/tuning.json]"
)
@click.option("--fresh", is_flag=True, help="Replace the whole file.")
@click.option("--explain", type=Sizes(), help="Measure nothing; explain the choice of auto at these sizes.")
def tune(**flags):
    """Measure which all-reduce is fastest here, for `--algorithm auto`.

    Run it under mpirun, as you run your training: the result holds for that machine and that layout of ranks. A file
    holds several layouts; a candidate wins only if all its results were right. docs/slow.md has the rules.
    """
    options = TuneOptions(**flags)
    return in_world(partial(_explain if options.explain else _tune, options=options))


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────
def _tune(transport: Transport, options: TuneOptions) -> int:
    asked = together(transport, lambda: _asked(transport, options))
    machine, layout = inspect_machine(transport)
    opened: list = []
    on_root(transport, lambda: opened.extend(_open(options, machine, layout)))
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
            echo(texts.FROM(text=line), err=True)
        echo(f"written to {opened[0].path}")
    return 0


def _candidates(transport: Transport, dtype: str) -> Candidates:
    """Return the algorithms that run here on a type; collective."""
    return find_candidates(transport, transport.allocate(1, TYPES[dtype].storage), dtype)


def _asked(transport: Transport, options: TuneOptions):
    """Return the sweep. Raises UsageError."""
    dtypes, ops = parse_names(options.dtypes, TYPES, "type"), parse_names(options.ops, OPS, "operation")
    names = catalogue.parse_algorithms(options.algorithms)
    if catalogue.AUTO in names:
        raise UsageError("this command tunes auto: name the candidates that it chooses among, or all")
    if transport.size == 1:
        raise UsageError("one rank has nothing to exchange: start it as `mpirun -np 4 ringtrain tune`")
    protocol = Protocol(
        repeats=options.iterations, warm_up=options.warm_up, budget_s=options.budget_s, seed=options.seed
    )
    return Sweep(
        sizes=swept(options.begin, options.end, options.factor),
        algorithms=names if options.algorithms != "all" else _running(transport, dtypes),
        dtypes=dtypes,
        ops=ops,
        protocol=protocol,
        passes=options.passes,
        memories=STREAMED,  # the others work in the memory of the run alone
        segment_bytes=options.segment_bytes,
    )


def _running(transport: Transport, dtypes: list[str]) -> list[str]:
    """Return the algorithms that run here on some of the types; collective."""
    names = {name for dtype in dtypes for name in _candidates(transport, dtype).candidates}
    return [name for name in ALGORITHMS if name in names]


def _open(options: TuneOptions, machine: dict, layout) -> tuple:
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


# ── explaining ────────────────────────────────────────────────────────────────────────────────────────────────
def _explain(transport: Transport, options: TuneOptions) -> int:
    """Show the choices of this layout under mpirun, and in one process those of every layout of the file."""
    dtypes, ops = together(
        transport, lambda: (parse_names(options.dtypes, TYPES, "type"), parse_names(options.ops, OPS, "operation"))
    )
    pairs = [(dtype, op) for dtype in dtypes for op in ops]
    if transport.size == 1:
        on_root(transport, lambda: _explain_file(options, pairs))
    else:
        _explain_here(transport, options, pairs)
    return 0


def _explain_file(options: TuneOptions, pairs: list[tuple[str, str]]) -> None:
    source = tuning_source(options.tuning, os.environ)
    tuning = read_tuning(source)
    echo(f"{source.path}: machine {machine_digest(tuning.machine)}, {'; '.join(tuning.machine.values())}")
    for name, table in tuning.tables.items():
        echo(f"layout {name}, measured {table.at}")
        for dtype, op in pairs:
            candidates = static_candidates(table.layout, dtype)
            echo(*choice_lines(table, candidates, options.explain or (), dtype, op, whole=True))


def _explain_here(transport: Transport, options: TuneOptions, pairs: list[tuple[str, str]]) -> None:
    tuning = find_tuning(transport, options.tuning)
    for dtype, op in pairs:
        candidates = _candidates(transport, dtype)
        if transport.rank == 0:
            echo(*choice_lines(tuning.table, candidates, options.explain or (), dtype, op, whole=True))
    if transport.rank == 0 and tuning.remark:
        echo(texts.FROM(text=tuning.remark), err=True)
