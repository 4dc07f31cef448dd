"""The command ``ringtrain bench-allreduce``."""

from dataclasses import replace
from functools import partial
from math import isfinite

import click

from ringtrain import plugin
from ringtrain.allreduce import catalogue
from ringtrain.allreduce.catalogue import AUTO
from ringtrain.allreduce.dtypes import OPS, TYPES
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.allreduce.wire_formats import WIRES
from ringtrain.bench.measure.buffers import NCCL, HostBuffers
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep import gates, tables
from ringtrain.bench.sweep.files import write_csv, write_json
from ringtrain.bench.sweep.gates import earlier
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.bench.sweep.sizes import of_buckets, parse_names, scrub_bytes, swept
from ringtrain.bench.sweep.sweep import Result, Sweep, Watcher, sweep
from ringtrain.cli import texts
from ringtrain.cli.devices import real_cuda, with_device
from ringtrain.cli.options import plugin_option
from ringtrain.cli.output import check_files, echo
from ringtrain.cli.progress import ProgressLine
from ringtrain.cli.values import Fraction, OfRank, Size
from ringtrain.cli.world import in_world
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport, bare
from ringtrain.nn import spec
from ringtrain.nn.arena import lay_out
from ringtrain.show.figures import write_picture
from ringtrain.train.agree import agree, on_root, together
from ringtrain.transport.base import Transport

SWEPT = {"begin": 1 << 10, "end": 1 << 24, "factor": 4.0}


@click.command("bench-allreduce")
@plugin_option
@click.option("-b", "--begin", type=Size(), help="Smallest buffer. [1K]")
@click.option("-e", "--end", type=Size(), help="Largest buffer. [16M]")
@click.option("-f", "--factor", type=float, help="Factor between sizes. [4]")
@click.option(
    "-n", "--iterations", type=click.IntRange(1), default=20, show_default=True, help="Timed iterations of a row."
)
@click.option(
    "-w", "--warm-up", type=click.IntRange(0), default=5, show_default=True, help="Untimed iterations before them."
)
@click.option(
    "-d", "--dtype", "dtypes", default="float32", show_default=True, help="Types, separated by commas, or all."
)
@click.option("-o", "--op", "ops", default="sum", show_default=True, help="sum, mean, max, min, or all.")
@click.option(
    "-c", "--check", type=click.Choice(["0", "1"]), default="1", show_default=True, help="Check every element."
)
@click.option(
    "--algorithm",
    "algorithms",
    default="all",
    show_default=True,
    help="Algorithms, separated by commas, mpi and auto among them; or all.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where the buffers lie."
)
@click.option("--wire", "wires", default="none", show_default=True, help="Round messages: float16, bfloat16, or all.")
@click.option("--tuning", metavar="FILE", help="Tuning file of auto. [RINGTRAIN_TUNING, or the usual place]")
@click.option("--sizes-of", metavar="MODEL", help="Sizes of a model's gradient buckets, in place of -b -e -f.")
@click.option("--segment-bytes", type=Size(), help="Bytes of a message. [256K in a node, 60000 between]")
@click.option("--out-of-place", is_flag=True, help="Measure out of place too.")
@click.option("--warm", is_flag=True, help="Do not write the buffers before each iteration.")
@click.option("--cold", is_flag=True, help="Empty the caches before every iteration.")
@click.option("--budget-s", type=click.FloatRange(0), help="Seconds of a size; no repetition begins after them.")
@click.option(
    "--beside", type=click.IntRange(0), default=0, show_default=True, help="Busy processes to start on each node."
)
@click.option(
    "--skew",
    type=OfRank("delay in seconds", 0, 60, "1:0.01"),
    help="Delay a rank before each iteration: 1:0.01.",
)
@click.option(
    "--check-collectives",
    is_flag=True,
    help="Compare every all-reduce over all ranks, and name a rank that hangs or differs. Costs time.",
)
@click.option("--pairs", is_flag=True, help="Map latency and bandwidth of every pair of ranks, and name the worst.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of orders, inputs and resampling."
)
@click.option("--json", "json_path", type=click.Path(), help="Write everything, raw samples too.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write one row for each measurement.")
@click.option("--plot", "plot_path", type=click.Path(), help="Draw to PNG, SVG or PDF.")
@click.option(
    "--compare", "compare_path", type=click.Path(), help="JSON of an earlier sweep: exit 1 if this one is slower."
)
@click.option("--max-regress", type=Fraction(), default="5%", show_default=True, help="Slowdown that --compare allows.")
@click.option("--min-busbw", type=float, metavar="GB/S", help="Exit 1 if an algorithm reaches this rate at no size.")
def bench_allreduce(**flags):
    """Compare all-reduce algorithms, the MPI's own among them: times, bounds, correctness.

    Run it under mpirun. Columns and how to read them: docs/bench.md. Exits with 1 if a result is wrong or a limit
    is not met.
    """
    return in_world(lambda transport: _bench(transport, flags))


def _bench(transport: Transport, flags: dict) -> int:
    agree(transport, plugin.facts())
    asked = together(transport, lambda: _asked(flags, transport.size))
    old = on_root(transport, lambda: _prepare_files(flags, asked.protocol))
    transport, asked, buffers, close = _placed(transport, _tuned(transport, flags, asked), flags)
    with transport.activity.during("a sweep"):
        result = sweep(transport, asked, _watcher(transport.rank, flags), buffers)
    if transport.rank == 0:
        end = tables.verdict_line(result.rows, result.header["self_test"])
        _say([*tables.fit_lines(result.header["fits"]), end])
    on_root(transport, lambda: _write(flags, result))
    complaints = together(transport, lambda: _complaints(flags, old, result.rows))
    if transport.rank == 0:
        for complaint in complaints:
            echo(texts.FROM(text=complaint), err=True)
    close()
    return 1 if complaints else 0


def _placed(transport: Transport, asked, flags: dict):
    """Return the transport, the sweep, its buffers on the asked device, and a function that frees their resources.
    Raises DeviceError."""
    if flags["device"] == "cuda":
        return with_device(bare(transport), asked, real_cuda(bare(transport)))
    transport = bare(transport)
    if not flags["check_collectives"]:
        return transport, asked, HostBuffers(transport), lambda: None
    guard = Guard(transport)
    guarded = GuardedTransport(transport, guard)
    return guarded, replace(asked, guard=guard), HostBuffers(guarded), guard.close


def _tuned(transport: Transport, flags: dict, asked):
    """Return the sweep with the tuning table of ``auto``, if auto takes part. Raises UsageError, on all ranks."""
    if AUTO not in asked.algorithms:
        return asked
    found = find_tuning(transport, flags["tuning"])
    if transport.rank == 0 and found.remark:
        echo(texts.FROM(text=found.remark), err=True)
    return replace(asked, tuning=found.table)


def _asked(flags: dict, ranks: int):
    """Return the sweep that the flags ask for. Raises UsageError."""
    dtypes = parse_names(flags["dtypes"], TYPES, "type")
    if flags["device"] == "cuda" and flags["check_collectives"]:
        raise UsageError("--check-collectives works in host memory alone: leave it out with --device cuda")
    return Sweep(
        sizes=_sizes(flags, TYPES[dtypes[0]].itemsize),
        algorithms=_algorithms(flags),
        dtypes=dtypes,
        ops=parse_names(flags["ops"], OPS, "operation"),
        protocol=_protocol(flags, ranks),
        checked=flags["check"] == "1",
        out_of_place=flags["out_of_place"],
        pairs=flags["pairs"],
        segment_bytes=flags["segment_bytes"],
        wires=parse_names(flags["wires"], WIRES, "wire"),
    )


def _protocol(flags: dict, ranks: int):
    """Return the protocol of the measurements. Raises UsageError."""
    late_rank, late_s = flags["skew"] or (None, 0.0)
    if late_rank is not None and late_rank >= ranks:
        raise UsageError(f"--skew delays rank {late_rank}, but the ranks are 0 to {ranks - 1}")
    for flag in ("budget_s", "min_busbw"):
        if flags[flag] is not None and not isfinite(flags[flag]):
            raise UsageError(f"--{flag.replace('_', '-')} {flags[flag]}: wanted a number")
    return Protocol(
        repeats=flags["iterations"],
        warm_up=flags["warm_up"],
        budget_s=flags["budget_s"],
        fresh=not flags["warm"],
        cold_bytes=scrub_bytes() if flags["cold"] else 0,
        late_rank=late_rank,
        late_s=late_s,
        seed=flags["seed"],
        beside=flags["beside"],
    )


def _algorithms(flags: dict) -> list[str]:
    """Return the names of the algorithms. Raises UsageError."""
    names = [name.strip() for name in flags["algorithms"].split(",")]
    if flags["device"] == "cpu" and NCCL in names:
        raise UsageError(f"{NCCL} reduces device memory: give --device cuda, or leave {NCCL} out")
    others = [name for name in names if name != NCCL]
    chosen = catalogue.parse_algorithms(",".join(others)) if others else []
    if flags["device"] == "cuda" and (NCCL in names or names == ["all"]):
        chosen.append(NCCL)
    if flags["tuning"] is not None and catalogue.AUTO not in chosen:
        raise UsageError(f"--tuning {flags['tuning']} is for auto: name auto in --algorithm, or leave --tuning out")
    return chosen


def _sizes(flags: dict, itemsize: int) -> list[int]:
    given = {name: flags[name] for name in SWEPT if flags[name] is not None}
    if flags["sizes_of"] is None:
        first, last, factor = (SWEPT | given).values()
        return swept(first, last, factor)
    if given:
        raise UsageError("--sizes-of takes the sizes from a model: leave out -b, -e and -f")
    from ringtrain.config.exchange import ExchangeConfig

    spans = lay_out(spec.load_model(flags["sizes_of"]).graph().parameters())
    return of_buckets(spans, itemsize, ExchangeConfig().bucket_bytes)


def _prepare_files(flags: dict, protocol) -> dict | None:
    """Check now that every file can be written, and return the earlier sweep of --compare, or None."""
    check_files(flags["json_path"], flags["csv_path"], picture=flags["plot_path"])
    return None if flags["compare_path"] is None else earlier(flags["compare_path"], protocol)


def _watcher(rank: int, flags: dict):
    """Return a watcher that, on rank 0, prints and writes the rows of a size once they are measured: a sweep that is
    stopped keeps its rows."""
    if rank != 0:
        return Watcher()

    columns, so_far = list(tables.COLUMNS), Result({})
    unwritten: list[RingtrainError] = []

    def begun(header: dict) -> None:
        so_far.header = header
        columns[:] = tables.table_columns(header)
        _say([*tables.header_lines(header), *tables.titles(columns)])

    def measured(rows: list[dict]) -> None:
        while unwritten:  # of earlier sizes; a failure at the end is an error
            echo(f"ringtrain: the rows so far are not in their files: {unwritten.pop()}", err=True)
        so_far.rows += rows
        _say(tables.row_line(row, columns) for row in rows)
        try:
            _write_tables(flags, so_far)
        except RingtrainError as error:  # there may be room again at the end
            unwritten.append(error)

    return Watcher(begun, measured, ProgressLine())


def _say(lines) -> None:
    echo(*lines)


def _write(flags: dict, result) -> None:
    _write_tables(flags, result)
    if flags["plot_path"] is not None:
        write_picture(partial(sweep_figure, result.header, result.rows), flags["plot_path"])


def _write_tables(flags: dict, result) -> None:
    if flags["json_path"] is not None:
        write_json(flags["json_path"], result.header, result.rows)
    if flags["csv_path"] is not None:
        write_csv(flags["csv_path"], result.rows)


def _complaints(flags: dict, old: dict | None, rows: list[dict]) -> list[str]:
    found = gates.wrong(rows)
    if old is not None:
        found += gates.regressions(old["rows"], rows, flags["max_regress"], flags["seed"])
    if flags["min_busbw"] is not None:
        found += gates.too_slow(rows, flags["min_busbw"] * 1e9)
    return found
