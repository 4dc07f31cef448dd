"""The command ``ringtrain bench-allreduce``."""

from dataclasses import dataclass, replace
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
from ringtrain.cli.output import echo
from ringtrain.cli.progress import ProgressLine
from ringtrain.cli.results import OutputPaths
from ringtrain.cli.values import Fraction, OfRank, Size
from ringtrain.cli.world import in_world
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport, bare
from ringtrain.nn import spec
from ringtrain.nn.arena import lay_out
from ringtrain.show.figures import write_picture
from ringtrain.transport.agree import agree, on_root, together
from ringtrain.transport.base import Transport

SWEPT = {"begin": 1 << 10, "end": 1 << 24, "factor": 4.0}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of the command."""

    begin: int | None
    end: int | None
    factor: float | None
    iterations: int
    warm_up: int
    dtypes: str
    ops: str
    check: str
    algorithms: str
    device: str
    wires: str
    tuning: str | None
    sizes_of: str | None
    segment_bytes: int | None
    out_of_place: bool
    warm: bool
    cold: bool
    budget_s: float | None
    beside: int
    skew: tuple[int, float] | None
    check_collectives: bool
    pairs: bool
    seed: int
    json_path: str | None
    csv_path: str | None
    plot_path: str | None
    compare_path: str | None
    max_regress: float
    min_busbw: float | None


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
    "--skew", type=OfRank("delay in seconds", 0, 60, "1:0.01"), help="Delay a rank before each iteration: 1:0.01."
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
    return in_world(partial(_bench, options=BenchOptions(**flags)))


def _bench(transport: Transport, options: BenchOptions) -> int:
    agree(transport, plugin.facts())
    asked = together(transport, lambda: _asked(options, transport.size))
    old = on_root(transport, lambda: _prepare_files(options, asked.protocol))
    transport, asked, buffers, close = _placed(transport, _tuned(transport, options, asked), options)
    with transport.activity.during("a sweep"):
        result = sweep(transport, asked, _watcher(transport.rank, options), buffers)
    if transport.rank == 0:
        end = tables.verdict_line(result.rows, result.header["self_test"])
        _say([*tables.fit_lines(result.header["fits"]), end])
    on_root(transport, lambda: _write(options, result))
    complaints = together(transport, lambda: _complaints(options, old, result.rows))
    if transport.rank == 0:
        for complaint in complaints:
            echo(texts.FROM(text=complaint), err=True)
    close()
    return 1 if complaints else 0


def _placed(transport: Transport, asked, options: BenchOptions):
    """Return the transport, the sweep, its buffers on the asked device, and a function that frees their resources.
    Raises DeviceError."""
    if options.device == "cuda":
        return with_device(bare(transport), asked, real_cuda(bare(transport)))
    transport = bare(transport)
    if not options.check_collectives:
        return transport, asked, HostBuffers(transport), lambda: None
    guard = Guard(transport)
    guarded = GuardedTransport(transport, guard)
    return guarded, replace(asked, guard=guard), HostBuffers(guarded), guard.close


def _tuned(transport: Transport, options: BenchOptions, asked):
    """Return the sweep with the tuning table of ``auto``, if auto takes part. Raises UsageError, on all ranks."""
    if AUTO not in asked.algorithms:
        return asked
    tuning = find_tuning(transport, options.tuning)
    if transport.rank == 0 and tuning.remark:
        echo(texts.FROM(text=tuning.remark), err=True)
    return replace(asked, tuning=tuning.table)


def _asked(options: BenchOptions, ranks: int):
    """Return the sweep that the flags ask for. Raises UsageError."""
    dtypes = parse_names(options.dtypes, TYPES, "type")
    if options.device == "cuda" and options.check_collectives:
        raise UsageError("--check-collectives works in host memory alone: leave it out with --device cuda")
    return Sweep(
        sizes=_sizes(options, TYPES[dtypes[0]].itemsize),
        algorithms=_algorithms(options),
        dtypes=dtypes,
        ops=parse_names(options.ops, OPS, "operation"),
        protocol=_protocol(options, ranks),
        checked=options.check == "1",
        out_of_place=options.out_of_place,
        pairs=options.pairs,
        segment_bytes=options.segment_bytes,
        wires=parse_names(options.wires, WIRES, "wire"),
    )


def _protocol(options: BenchOptions, ranks: int):
    """Return the protocol of the measurements. Raises UsageError."""
    late_rank, late_s = options.skew or (None, 0.0)
    if late_rank is not None and late_rank >= ranks:
        raise UsageError(f"--skew delays rank {late_rank}, but the ranks are 0 to {ranks - 1}")
    for flag, value in (("--budget-s", options.budget_s), ("--min-busbw", options.min_busbw)):
        if value is not None and not isfinite(value):
            raise UsageError(f"{flag} {value}: wanted a number")
    return Protocol(
        repeats=options.iterations,
        warm_up=options.warm_up,
        budget_s=options.budget_s,
        fresh=not options.warm,
        cold_bytes=scrub_bytes() if options.cold else 0,
        late_rank=late_rank,
        late_s=late_s,
        seed=options.seed,
        beside=options.beside,
    )


def _algorithms(options: BenchOptions) -> list[str]:
    """Return the names of the algorithms. Raises UsageError."""
    names = [name.strip() for name in options.algorithms.split(",")]
    if options.device == "cpu" and NCCL in names:
        raise UsageError(f"{NCCL} reduces device memory: give --device cuda, or leave {NCCL} out")
    others = [name for name in names if name != NCCL]
    chosen = catalogue.parse_algorithms(",".join(others)) if others else []
    if options.device == "cuda" and (NCCL in names or names == ["all"]):
        chosen.append(NCCL)
    if options.tuning is not None and catalogue.AUTO not in chosen:
        raise UsageError(f"--tuning {options.tuning} is for auto: name auto in --algorithm, or leave --tuning out")
    return chosen


def _sizes(options: BenchOptions, itemsize: int) -> list[int]:
    asked = {name: value for name in SWEPT if (value := getattr(options, name)) is not None}
    if options.sizes_of is None:
        first, last, factor = (SWEPT | asked).values()
        return swept(first, last, factor)
    if asked:
        raise UsageError("--sizes-of takes the sizes from a model: leave out -b, -e and -f")
    spans = lay_out(spec.load_model(options.sizes_of).graph().parameters())
    return of_buckets(spans, itemsize, ExchangeConfig().bucket_bytes)


def _prepare_files(options: BenchOptions, protocol) -> dict | None:
    """Check now that every file can be written, and return the earlier sweep of --compare, or None."""
    OutputPaths(options.json_path, options.csv_path, options.plot_path).check()
    return None if options.compare_path is None else earlier(options.compare_path, protocol)


def _watcher(rank: int, options: BenchOptions):
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
            _write_tables(options, so_far)
        except RingtrainError as error:  # there may be room again at the end
            unwritten.append(error)

    return Watcher(begun, measured, ProgressLine())


def _say(lines) -> None:
    echo(*lines)


def _write(options: BenchOptions, result) -> None:
    _write_tables(options, result)
    if options.plot_path is not None:
        write_picture(partial(sweep_figure, result.header, result.rows), options.plot_path)


def _write_tables(options: BenchOptions, result) -> None:
    if options.json_path is not None:
        write_json(options.json_path, result.header, result.rows)
    if options.csv_path is not None:
        write_csv(options.csv_path, result.rows)


def _complaints(options: BenchOptions, old: dict | None, rows: list[dict]) -> list[str]:
    complaints = gates.wrong(rows)
    if old is not None:
        complaints += gates.regressions(old["rows"], rows, options.max_regress, options.seed)
    if options.min_busbw is not None:
        complaints += gates.too_slow(rows, options.min_busbw * 1e9)
    return complaints
