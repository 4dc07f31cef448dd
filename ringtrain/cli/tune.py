"""The command ``ringtrain tune``."""

import os

import click

from ringtrain.allreduce import catalogue
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
from ringtrain.train.agree import on_root, together
from ringtrain.transport.base import Transport

OPS = ("sum", "max", "min")  # a mean is a sum that is divided afterwards


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
    if flags["explain"]:
        return in_world(lambda transport: _explain(transport, flags))
    return in_world(lambda transport: _tune(transport, flags))


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────
def _tune(transport: Transport, flags: dict) -> int:
    asked = together(transport, lambda: _asked(transport, flags))
    machine, layout = inspect_machine(transport)
    kept: list = []
    on_root(transport, lambda: kept.append(_open(flags, machine, layout)))
    with transport.activity.during("a sweep"):
        watcher = Watcher(progress=ProgressLine()) if transport.rank == 0 else Watcher()
        result = sweep(bare(transport), asked, watcher)
    table = table_from(result, layout)
    on_root(transport, lambda: _keep(kept[0], table))
    for dtype, op in table.groups():
        here = find_candidates(transport, transport.allocate(1, _storage(dtype)), dtype)
        if transport.rank == 0:
            echo(*choice_lines(table, here, asked.sizes, dtype, op, whole=False))
    if transport.rank == 0:
        for line in [*barred(table), *doubts(result)]:
            echo(texts.FROM(text=line), err=True)
        echo(f"written to {kept[0][0].path}")
    return 0


def _storage(name: str):
    return TYPES[name].storage


def _asked(transport: Transport, flags: dict):
    """Return the sweep. Raises UsageError."""
    dtypes, ops = parse_names(flags["dtypes"], TYPES, "type"), parse_names(flags["ops"], OPS, "operation")
    names = catalogue.parse_algorithms(flags["algorithms"])
    if catalogue.AUTO in names:
        raise UsageError("this command tunes auto: name the candidates that it chooses among, or all")
    if transport.size == 1:
        raise UsageError("one rank has nothing to exchange: start it as `mpirun -np 4 ringtrain tune`")
    protocol = Protocol(
        repeats=flags["iterations"], warm_up=flags["warm_up"], budget_s=flags["budget_s"], seed=flags["seed"]
    )
    return Sweep(
        sizes=swept(flags["begin"], flags["end"], flags["factor"]),
        algorithms=names if flags["algorithms"] != "all" else _running(transport, dtypes),
        dtypes=dtypes,
        ops=ops,
        protocol=protocol,
        passes=flags["passes"],
        memories=STREAMED,  # the others work in the memory of the run alone
        segment_bytes=flags["segment_bytes"],
    )


def _running(transport: Transport, dtypes: list[str]) -> list[str]:
    """Return the algorithms that run here on some of the types; collective."""
    found = [find_candidates(transport, transport.allocate(1, _storage(dtype)), dtype).candidates for dtype in dtypes]
    return [name for name in ALGORITHMS if any(name in own for own in found)]


def _open(flags: dict, machine: dict, layout) -> tuple:
    """Return (the source of the tuning file, its content); check now that it can be written. Raises UsageError."""
    place = tuning_source(flags["tuning"], os.environ)
    if not place.asked_by:
        place.path.parent.mkdir(parents=True, exist_ok=True)
    folder = place.path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{place.path} cannot be written: there is no folder {folder}")
    if place.path.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{place.path} cannot be written: it is a folder, or its folder is not writable")
    tuning = Tuning(machine)
    if place.path.exists() and not flags["fresh"]:
        tuning = read_tuning(place)
        check_machine(tuning, place, machine)
    told = "; ".join(f"{name} {value}" for name, value in machine.items())
    echo(f"tuning {layout.words()} (layout {layout.name}) of machine {machine_digest(machine)}: {told}")
    return place, tuning


def _keep(opened: tuple, table) -> None:
    place, tuning = opened
    files.write(place.path, tuning.with_table(table).text().encode())


# ── explaining ────────────────────────────────────────────────────────────────────────────────────────────────
def _explain(transport: Transport, flags: dict) -> int:
    """Show the choices of this layout under mpirun, and in one process those of every layout of the file."""
    dtypes, ops = together(
        transport, lambda: (parse_names(flags["dtypes"], TYPES, "type"), parse_names(flags["ops"], OPS, "operation"))
    )
    pairs = [(dtype, op) for dtype in dtypes for op in ops]
    if transport.size == 1:
        on_root(transport, lambda: _explain_file(flags, pairs))
    else:
        _explain_here(transport, flags, pairs)
    return 0


def _explain_file(flags: dict, pairs: list[tuple[str, str]]) -> None:
    place = tuning_source(flags["tuning"], os.environ)
    tuning = read_tuning(place)
    echo(f"{place.path}: machine {machine_digest(tuning.machine)}, {'; '.join(tuning.machine.values())}")
    for name, table in tuning.tables.items():
        echo(f"layout {name}, measured {table.at}")
        for dtype, op in pairs:
            here = static_candidates(table.layout, dtype)
            echo(*choice_lines(table, here, flags["explain"], dtype, op, whole=True))


def _explain_here(transport: Transport, flags: dict, pairs: list[tuple[str, str]]) -> None:
    found = find_tuning(transport, flags["tuning"])
    for dtype, op in pairs:
        here = find_candidates(transport, transport.allocate(1, _storage(dtype)), dtype)
        if transport.rank == 0:
            echo(*choice_lines(found.table, here, flags["explain"], dtype, op, whole=True))
    if transport.rank == 0 and found.remark:
        echo(texts.FROM(text=found.remark), err=True)
