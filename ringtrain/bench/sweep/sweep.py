"""The whole benchmark: calibrate, then measure size after size, and fit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, product
from typing import Any

from ringtrain.allreduce.catalogue import ALGORITHMS, AUTO, NATIVE
from ringtrain.allreduce.dtypes import TYPES, NumberType
from ringtrain.allreduce.tuning_table import Table
from ringtrain.allreduce.wire_formats import NONE, host_wire
from ringtrain.bench.header import make_header
from ringtrain.bench.measure import checks, rows
from ringtrain.bench.measure.buffers import CPU, ORDINARY, SHARED, Buffers
from ringtrain.bench.measure.collectives import BARRIER, COLLECTIVES, prepare_collective
from ringtrain.bench.measure.links import measure_pairs
from ringtrain.bench.measure.timing import START, Protocol, Samples, busy_processes, measure_trials
from ringtrain.bench.measure.trials import ALL_REDUCE, Baseline, MeasuredCollective, PreparedTrial, Refusal, prepare
from ringtrain.bench.model.bounds import Bounds
from ringtrain.bench.model.fit import fit_sweep
from ringtrain.bench.sweep.sizes import whole_elements
from ringtrain.collectives.execution.execute import segment_for
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.collectives.stream import STREAM
from ringtrain.monitor.guard import Guard
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Transport

Contender = tuple[str, str, str]  # algorithm, wire, way
GLOO = "gloo"
# Where algorithms are measured: arrays that are streamed lie anywhere, others are faster in one kind or another.
STREAMED = {STREAM: (ORDINARY,)}
PLACED = {NATIVE: (SHARED, ORDINARY), GLOO: (SHARED, ORDINARY), **STREAMED}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The settings of a sweep. Sizes are bytes; the rest are names of the catalogues, and the protocol."""

    sizes: Sequence[int]
    algorithms: Sequence[str] = ALGORITHMS
    dtypes: Sequence[str] = ("float32",)
    ops: Sequence[str] = ("sum",)
    protocol: Protocol = field(default_factory=Protocol)
    checked: bool = True  # whether results are checked, and compared bit by bit
    pairs: bool = False  # whether to map every pair of ranks first
    segment_bytes: int | None = None  # longest segment of a schedule's moves; None: as suits the nodes
    # external all-reduces (:func:`trials.prepare`), by their names in ``algorithms``
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    # number of passes over all sizes; a row is of its quietest pass, so that a disturbance of seconds spoils no
    # size
    passes: int = 1
    tuning: Table | None = None  # table for ``auto`` among the algorithms, which chooses before anything is timed
    guard: Guard | None = None  # watches the all-reduces; None for none
    wires: Sequence[str] = (NONE,)  # names of the messages' types; each algorithm over each wire
    # kinds of memory for each algorithm, of those that the buffers have: the fastest is its row. Without any of
    # them the first kind is used, as in training. The MPI's own, which all are compared with, is commonly called on
    # ordinary memory
    memories: Mapping[str, Sequence[str]] = field(default_factory=lambda: PLACED)
    # among :data:`ringtrain.bench.measure.collectives.COLLECTIVES`; those but the all-reduce are the communicator's
    collective: str = ALL_REDUCE
    communicator: Any = None

    def contenders(self, buffers: Buffers) -> list[Contender]:
        """Return (algorithm, wire, way) of all contenders for a job."""
        named = product(self.algorithms, self.wires)
        return [(algorithm, wire, way) for algorithm, wire in named for way in buffers.ways_of(algorithm)]

    @property
    def arrays(self) -> int:
        """The number of arrays of a job."""
        return 1 if COLLECTIVES[self.collective].in_place else 2

    def memories_of(self, algorithm: str, buffers: Buffers) -> list[str]:
        if self.collective != ALL_REDUCE:
            return [ORDINARY]
        names = [name for name in self.memories.get(algorithm, ()) if name in buffers.memories]
        return names or [buffers.memories[0]]

    def all_memories(self, buffers: Buffers) -> list[str]:
        """Return all kinds of memory, in the same order on all ranks."""
        return list(dict.fromkeys(name for each in self.algorithms for name in self.memories_of(each, buffers)))


@dataclass(slots=True)
class Result:
    """The header and the rows of a sweep."""

    header: dict
    rows: list[dict] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks of a sweep: ``begun(header)``, ``measured(rows)`` of one size, ``progress(what, done, of)``."""

    begun: Callable[[dict], None] = lambda header: None
    measured: Callable[[list[dict]], None] = lambda rows: None
    progress: Callable[[str, int, int], None] = lambda what, done, total: None


def sweep(transport: Transport, asked: Sweep, watcher: Watcher | None = None, buffers: Buffers | None = None) -> Result:
    """Run a sweep. Collective; the same on all ranks. ``buffers``: memory of the buffers; host memory by default.
    Raises UsageError if the buffers exceed the memory.
    """
    watcher, buffers = _limited(watcher or Watcher(), transport.activity), buffers or Buffers(transport)
    asked = replace(asked, segment_bytes=asked.segment_bytes or segment_for(transport))
    buffers.check_room(_room(asked, transport.size) * len(asked.all_memories(buffers)) * asked.arrays)
    result = Result(make_header(transport, START) | buffers.describe())
    tag = len(asked.contenders(buffers))  # after the tags of the trials
    watcher.progress("calibrating links", 0, 1)
    bounds = Bounds(buffers, tag)
    more = {"segment_bytes": asked.segment_bytes, "passes": asked.passes, "wires": list(asked.wires)}
    result.header |= {"protocol": asdict(asked.protocol) | more, **bounds.as_dict()}
    mapping = partial(watcher.progress, "mapping pairs")
    result.header |= {"pairs": measure_pairs(buffers, tag, mapping) if asked.pairs else None}
    result.header |= {"fits": [], "finished": False}
    watcher.begun(result.header)
    bench = _Bench(buffers, asked, bounds, result.header["crowded"], watcher)
    with busy_processes(asked.protocol.beside if transport.local_rank == 0 else 0):
        _measure_all(bench, asked.passes, watcher, result)
    # The models cover only messages, and a device's time has more terms; a choice of auto has no model of its own.
    modelled = result.rows if asked.collective == ALL_REDUCE else []
    of_host = [row for row in modelled if rows.asked_name(row) != AUTO and row["device"] == CPU]
    fits = fit_sweep(of_host, bounds.calibration, topology_of(transport))
    result.header |= {"fits": fits, "finished": True}
    return result


def _limited(watcher: Watcher, activity: Activity) -> Watcher:
    """Return the watcher with each measurement as a stage limited by the deadline: timed code has no guard."""

    def progress(what: str, done: int, total: int) -> None:
        activity.limit(f"a sweep: {what}")
        watcher.progress(what, done, total)

    return replace(watcher, progress=progress)


def _measure_all(bench: "_Bench", passes: int, watcher: Watcher, result: Result) -> None:
    """Add the rows of all jobs to the result: of several passes the quieter ones."""
    kept = []
    for jobs in bench.jobs():
        ready = bench.prepare(jobs)
        fresh = bench.measure(ready)
        watcher.measured(fresh)
        result.rows += fresh
        if passes > 1:
            kept.append(ready)
        else:
            ready.free()
    for _ in range(1, passes):
        again = [row for ready in kept for row in bench.measure(ready)]
        result.rows = [rows.quieter(*pair) for pair in zip(result.rows, again, strict=True)]
    for ready in kept:
        ready.free()


@dataclass(frozen=True, slots=True)
class _Ready:
    """A job, with a trial for each kind of memory of each contender that can run it, and a row for each that cannot.
    Verdicts follow the trials, one for each.
    """

    job: MeasuredCollective
    trials: dict[Contender, list[PreparedTrial]]
    refusals: dict[Contender, dict]
    verdicts: list[checks.Verdict | None]

    def free(self) -> None:
        for trial in chain.from_iterable(self.trials.values()):
            trial.free()


def _room(asked: Sweep, row_count: int) -> int:
    """Return the bytes of a buffer that contains every size, of so many rows at most."""
    return max(asked.sizes) + row_count * max(numbers.itemsize for numbers in TYPES.values())


class _Bench:
    """The memory that contains every size."""

    def __init__(self, buffers: Buffers, asked: Sweep, bounds: Bounds, crowded: str | None, watcher: Watcher):
        self._buffers, self._transport, self._asked, self._bounds = buffers, buffers.transport, asked, bounds
        self._crowded, self._watcher = crowded, watcher
        self._contenders = asked.contenders(buffers)
        self._segment_bytes = asked.segment_bytes or segment_for(buffers.transport)
        self._wires = {name: host_wire(name) for name in asked.wires}
        room, copies = _room(asked, buffers.transport.size), asked.arrays
        self._spans = {
            memory: [buffers.allocate(room, memory) for _ in range(copies)] for memory in asked.all_memories(buffers)
        }

    def jobs(self) -> Iterator[dict[str, MeasuredCollective]]:
        """Yield the same job in each kind of memory. Sizes are innermost, so that a table reads like a curve."""
        ops = self._asked.ops if COLLECTIVES[self._asked.collective].adds else ("sum",)
        dtypes = self._asked.dtypes[:1] if self._asked.collective == BARRIER else self._asked.dtypes
        for dtype, op in product(dtypes, ops):
            numbers = TYPES[dtype]
            for nbytes in self._sizes(numbers.itemsize):
                yield {memory: self._job(memory, nbytes, numbers, op) for memory in self._spans}

    def _sizes(self, itemsize: int) -> list[int]:
        """Return the sizes in whole elements, and in whole rows for all ranks where arrays have these."""
        asked = COLLECTIVES[self._asked.collective]
        if self._asked.collective == BARRIER:
            return [0]
        return whole_elements(self._asked.sizes, itemsize * (self._transport.size if asked.has_rows else 1))

    def _job(self, memory: str, nbytes: int, numbers: NumberType, op: str) -> MeasuredCollective:
        asked, row = COLLECTIVES[self._asked.collective], nbytes // self._transport.size
        shares = [asked.has_rows and not rows for rows in (asked.rows_out, asked.rows_in)]
        spans = zip(self._spans[memory], shares, strict=False)
        target, *rest = (self._buffers.typed(span, row if share else nbytes, numbers) for span, share in spans)
        source, guard = rest[0] if rest else None, self._asked.guard
        return MeasuredCollective(self._buffers, numbers, op, target, source, guard, memory, self._asked.collective)

    def prepare(self, jobs: dict[str, MeasuredCollective]) -> _Ready:
        """Return all contenders ready to run the job, and judged."""
        asked, trials, refusals = self._asked, {}, {}
        for tag, each in enumerate(self._contenders):
            algorithm, wire, way = each
            measured = [jobs[memory] for memory in asked.memories_of(algorithm, self._buffers)]
            how = (algorithm, tag, self._segment_bytes, asked.baselines, asked.tuning, self._wires[wire], way)
            try:
                if asked.collective == ALL_REDUCE:
                    trials[each] = [prepare(job, *how) for job in measured]
                else:
                    named = (algorithm, asked.communicator, asked.baselines)
                    trials[each] = [prepare_collective(job, *named) for job in measured]
            except Refusal as reason:
                refusals[each] = rows.refused(rows.identity(measured[0], algorithm, None, wire, way), str(reason))
        verdicts = [self._judge(trial) for trial in chain.from_iterable(trials.values())]
        return _Ready(next(iter(jobs.values())), trials, refusals, verdicts)

    def measure(self, ready: _Ready) -> list[dict]:
        """Return the rows of all contenders on one job, in the order asked for."""
        trials = list(chain.from_iterable(ready.trials.values()))
        progress = partial(self._watcher.progress, f"{ready.job.nbytes:,} bytes of {ready.job.numbers.name}")
        samples = measure_trials(self._transport, trials, self._asked.protocol, progress)
        sent = zip(*self._transport.gather_json([trial.bytes_sent for trial in trials]), strict=True)
        measured = map(self._row, trials, samples, ready.verdicts, map(_busiest, sent))
        fastest = {each: rows.fastest([next(measured) for _ in several]) for each, several in ready.trials.items()}
        base = next((row for row in fastest.values() if row["algorithm"] == NATIVE), None)
        seed = self._asked.protocol.seed
        final = ready.refusals | {each: rows.with_speedup(row, base, seed) for each, row in fastest.items()}
        return [final[each] for each in self._contenders]

    def _judge(self, trial: PreparedTrial) -> checks.Verdict | None:
        if not self._asked.checked or self._asked.collective == BARRIER:
            return None
        job, seed = trial.job, self._asked.protocol.seed
        self._watcher.progress(f"checking {trial.name} on {job.nbytes:,} bytes of {job.numbers.name}", 0, 1)
        return checks.judge(trial, seed)

    def _row(self, trial: PreparedTrial, samples: Samples, verdict: checks.Verdict | None, sent: int | None) -> dict:
        job = trial.job
        named = rows.identity(job, trial.algorithm, trial.transport, trial.wire, trial.way)
        fraction = TYPES[named["wire_dtype"]].itemsize / job.numbers.itemsize
        bound = self._bounds.bound_s(trial, job.nbytes, fraction) if job.collective == ALL_REDUCE else None
        row = rows.measured(named, samples, sent, bound, self._crowded, trial.why)
        return rows.with_verdict(row, verdict)


def _busiest(sent: Sequence[int | None]) -> int | None:
    """Return the bytes of the rank that sends most; ``sent`` by rank."""
    known = [nbytes for nbytes in sent if nbytes is not None]
    return max(known) if len(known) == len(sent) else None
