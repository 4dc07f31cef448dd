"""``ringtrain bench-allreduce``: its options, and the way from them to a sweep, its text, its files and its gates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from ringtrain.allreduce.catalogue import AUTO, NATIVE, parse_algorithms
from ringtrain.allreduce.dtypes import OPS, TYPES
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.allreduce.wire_formats import WIRES
from ringtrain.bench.measure.buffers import NCCL, Buffers, DeviceBuffers
from ringtrain.bench.measure.collectives import BARRIER, COLLECTIVES
from ringtrain.bench.measure.nccl import Nccl, load_from_cupy
from ringtrain.bench.measure.rows import group as group_of
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.measure.trials import ALL_REDUCE, Baseline
from ringtrain.bench.sweep import gates, tables
from ringtrain.bench.sweep.files import write_csv, write_json
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.bench.sweep.sizes import of_buckets, parse_names, scrub_bytes, swept
from ringtrain.bench.sweep.sweep import GLOO, Result, Sweep, Watcher, sweep
from ringtrain.collectives.catalogue import HALVES
from ringtrain.collectives.stream import STREAM
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import flag
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.memory.arena import lay_out
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport, bare
from ringtrain.nn import spec
from ringtrain.show.figures import write_picture
from ringtrain.show.output import ProgressLine, complain, echo
from ringtrain.show.results import OutputPaths
from ringtrain.transport.agree import on_root, together
from ringtrain.transport.base import Transport
from ringtrain.transport.cuda_aware.decision import YES
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport

SWEPT = {"begin": 1 << 10, "end": 1 << 24, "factor": 4.0}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    begin: int | None = flag("Smallest buffer. [1K]", short="b", kind="bytes")
    end: int | None = flag("Largest buffer. [16M]", short="e", kind="bytes")
    factor: float | None = flag("Factor between sizes. [4]", short="f")
    iterations: int = flag("Timed iterations of a row.", 20, short="n", low=1)
    warm_up: int = flag("Untimed iterations before them.", 5, short="w", low=0)
    dtypes: str = flag("Types, separated by commas, or all.", "float32", name="dtype", short="d")
    ops: str = flag("sum, mean, max, min, or all.", "sum", name="op", short="o")
    check: str = flag("Check every element.", "1", short="c", choices=("0", "1"))
    collective: str = flag("The collective to measure.", ALL_REDUCE, choices=tuple(COLLECTIVES))
    algorithms: str = flag(
        "Algorithms, separated by commas, mpi, auto and PyTorch's gloo among them; or all but gloo.",
        "all",
        name="algorithm",
    )
    device: str = flag("Where the buffers lie.", "cpu", choices=("cpu", "cuda"))
    wires: str = flag("Round messages: float16, bfloat16, or all.", "none", name="wire")
    tuning: str | None = flag("Tuning file of auto. [RINGTRAIN_TUNING, or the usual place]", metavar="FILE")
    sizes_of: str | None = flag("Sizes of a model's gradient buckets, in place of -b -e -f.", metavar="MODEL")
    segment_bytes: int | None = flag("Bytes of a message. [256K in a node, 60000 between]", kind="bytes")
    cold: bool = flag("Empty the caches before every iteration.")
    budget_s: float | None = flag("Seconds of a size; no repetition begins after them.", low=0)
    check_collectives: bool = flag(
        "Compare every all-reduce over all ranks, and name a rank that hangs or differs. Costs time."
    )
    pairs: bool = flag("Map latency and bandwidth of every pair of ranks, and name the worst.")
    seed: int = flag("Seed of orders, inputs and resampling.", 0, low=0)
    json_path: str | None = flag("Write everything, raw samples too.", name="json", kind="path")
    csv_path: str | None = flag("Write one row for each measurement.", name="csv", kind="path")
    plot_path: str | None = flag("Draw to PNG, SVG or PDF.", name="plot", kind="path")
    compare_path: str | None = flag(
        "JSON of an earlier sweep: exit 1 if this one is slower.", name="compare", kind="path"
    )
    max_regress: float = flag("Slowdown that --compare allows.", "5%", kind="share")
    min_busbw: float | None = flag("Exit 1 if an algorithm reaches this rate at no size.", metavar="GB/S")


class BenchDevices(NamedTuple):
    """The functions that reach a device; tests have others."""

    index: Callable  # () → the number of this rank's device among the visible ones
    runtime: Callable  # (index) → its runtime
    ops: Callable  # (runtime, dtype) → operations
    # (transport, index) → how device memory goes (:func:`ringtrain.transport.world.choose_way`); before any rank
    # uses its device
    choose: Callable


class Beside(NamedTuple):
    """communicator: (transport) → a :class:`ringtrain.Communicator` of the ranks; gloo: (transport) → PyTorch's
    collectives, as a baseline"""

    communicator: Callable[[Transport], Any]
    gloo: Callable[[Transport], Baseline]


def run(transport: Transport, options: BenchOptions, cuda: Callable[[Transport], BenchDevices], others: Beside) -> int:
    """Measure, print, write, and return the exit code. Collective. ``cuda``: reaches the devices of ranks"""
    asked = together(transport, lambda: sweep_of(options))
    old = on_root(transport, lambda: _earlier(options, asked.protocol))
    if AUTO in asked.algorithms:
        tuning = find_tuning(transport, options.tuning)
        if transport.rank == 0 and tuning.remark:
            complain(tuning.remark)
        asked = replace(asked, tuning=tuning.table)
    buffers: Buffers
    close = lambda: None  # noqa: E731
    if options.device == "cuda":
        device, note = device_buffers(bare(transport), cuda(bare(transport)))
        if transport.rank == 0:
            echo(f"# {note}")
        nccl = Nccl(device, load_from_cupy)
        asked, buffers, close = replace(asked, baselines={NCCL: nccl}), device, nccl.close
    elif options.check_collectives:
        guard = Guard(bare(transport))
        asked, close = replace(asked, guard=guard), guard.close
        buffers = Buffers(GuardedTransport(bare(transport), guard))
    else:
        buffers = Buffers(bare(transport))
    if GLOO in asked.algorithms:
        asked = replace(asked, baselines={**asked.baselines, GLOO: others.gloo(bare(transport))})
    if asked.collective != ALL_REDUCE:
        asked = replace(asked, communicator=others.communicator(buffers.transport))
        close = asked.communicator.close
    with transport.activity.during("a sweep"):
        result = sweep(buffers.transport, asked, _watcher(transport.rank, options), buffers)
    if transport.rank == 0:
        echo(*tables.fit_lines(result.header["fits"]), tables.verdict_line(result.rows))
    on_root(transport, lambda: _write(options, result))
    complaints = together(transport, lambda: _complaints(options, old, result.rows))
    if transport.rank == 0:
        for complaint in complaints:
            complain(complaint)
    close()
    return 1 if complaints else 0


def device_buffers(transport: Transport, cuda: BenchDevices) -> tuple[DeviceBuffers, str]:
    """Return (buffers, a line about the way of messages). Collective. Raises DeviceError."""
    index = together(transport, cuda.index)
    choice = cuda.choose(transport, index)
    runtime = together(transport, lambda: cuda.runtime(index))
    tried = any(rung.name == "trial" and rung.answer == YES for rung in choice.rungs)
    names = dict.fromkeys([choice.way, STAGED, *([DIRECT] if tried else [])])
    ipc = CudaIpc(transport, runtime)
    transports = {name: DeviceTransport(transport, runtime, name, ipc=ipc) for name in names}
    note = f"{choice.words}; ranks of a node do not map each other's buffers: {ipc.why}" if ipc.why else choice.words
    return DeviceBuffers(runtime, partial(cuda.ops, runtime), transports), note


def sweep_of(options: BenchOptions) -> Sweep:
    """Return the sweep that the options ask for. Raises UsageError."""
    dtypes = parse_names(options.dtypes, TYPES, "type")
    if options.device == "cuda" and options.check_collectives:
        raise UsageError("--check-collectives works in host memory alone: leave it out with --device cuda")
    _check_collective(options)
    return Sweep(
        sizes=_sizes(options, TYPES[dtypes[0]].itemsize),
        algorithms=_algorithms(options),
        dtypes=dtypes,
        ops=parse_names(options.ops, OPS, "operation"),
        protocol=_protocol(options),
        checked=options.check == "1",
        pairs=options.pairs,
        segment_bytes=options.segment_bytes,
        wires=parse_names(options.wires, WIRES, "wire"),
        collective=options.collective,
    )


def _check_collective(options: BenchOptions) -> None:
    """Raise UsageError for what the all-reduce alone has."""
    has = {
        "--device cuda": options.device == "cuda",
        "--wire": options.wires != "none",
        "--check-collectives": options.check_collectives,
        "--tuning": options.tuning is not None,
        "--segment-bytes": options.segment_bytes is not None,
    }
    for name in [name for name, is_asked in has.items() if is_asked and options.collective != ALL_REDUCE]:
        raise UsageError(f"--collective {options.collective} and {name}, which the all-reduce alone has: leave one out")
    if options.collective == BARRIER and (options.plot_path or options.min_busbw is not None):
        raise UsageError("a barrier moves no bytes: leave --plot and --min-busbw out")


def _protocol(options: BenchOptions) -> Protocol:
    for option, value in (("--budget-s", options.budget_s), ("--min-busbw", options.min_busbw)):
        if value is not None and not isfinite(value):
            raise UsageError(f"{option} {value}: wanted a number")
    return Protocol(
        repeats=options.iterations,
        warm_up=options.warm_up,
        budget_s=options.budget_s,
        cold_bytes=scrub_bytes() if options.cold else 0,
        seed=options.seed,
    )


def _algorithms(options: BenchOptions) -> list[str]:
    names = [name.strip() for name in options.algorithms.split(",")]
    if options.device == "cpu" and NCCL in names:
        raise UsageError(f"{NCCL} reduces device memory: give --device cuda, or leave {NCCL} out")
    if options.device == "cuda" and GLOO in names:
        raise UsageError(f"{GLOO} reduces host memory: leave it out, or --device cuda")
    others = [name for name in names if name not in (NCCL, GLOO)]
    if options.collective != ALL_REDUCE:
        known = [AUTO, NATIVE, STREAM, *HALVES]
        return [AUTO, NATIVE] if names == ["all"] else [*parse_names(",".join(names), [*known, GLOO], "algorithm")]
    chosen = parse_algorithms(",".join(others)) if others else []
    chosen += [GLOO] if GLOO in names else []
    if options.device == "cuda" and (NCCL in names or names == ["all"]):
        chosen.append(NCCL)
    if options.tuning is not None and AUTO not in chosen:
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


def _earlier(options: BenchOptions, protocol: Protocol) -> dict | None:
    """Check now that every file can be written, and return the earlier sweep of --compare, or None."""
    OutputPaths(options.json_path, options.csv_path, options.plot_path).check()
    return None if options.compare_path is None else gates.earlier(options.compare_path, protocol)


def _watcher(rank: int, options: BenchOptions) -> Watcher:
    """Return a watcher that, on rank 0, prints and writes the rows of a size once they are measured: a sweep that is
    stopped keeps its rows."""
    if rank != 0:
        return Watcher()
    so_far, unwritten = Result({}), list[RingtrainError]()

    def begun(header: dict) -> None:
        so_far.header = header
        echo(*tables.header_lines(header), *tables.titles())

    def measured(rows: list[dict]) -> None:
        while unwritten:  # of earlier sizes; a failure at the end is an error
            echo(f"ringtrain: the rows so far are not in their files: {unwritten.pop()}", err=True)
        group = group_of(rows[0])
        is_new = not so_far.rows or group_of(so_far.rows[-1]) != group
        lines = [tables.row_line(row, crowded=so_far.header["crowded"]) for row in rows]
        echo(*([f"# {group}"] if is_new else []), *lines)
        so_far.rows += rows
        try:
            _write_tables(options, so_far)
        except RingtrainError as error:  # there may be room again at the end
            unwritten.append(error)

    return Watcher(begun, measured, ProgressLine())


def _write(options: BenchOptions, result: Result) -> None:
    _write_tables(options, result)
    if options.plot_path is not None:
        write_picture(partial(sweep_figure, result.header, result.rows), options.plot_path)


def _write_tables(options: BenchOptions, result: Result) -> None:
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
