"""The contenders: every schedule of the catalogue, and the MPI's own all-reduce, each as one function to run.

A schedule joins by being in the catalogue. An algorithm that cannot run here is refused with a reason, never left out
silently.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ringtrain.allreduce import catalogue
from ringtrain.allreduce.catalogue import AUTO, NATIVE, auto_name
from ringtrain.allreduce.dtypes import MEAN, NumberType, reduction_of
from ringtrain.allreduce.tuning_table import Table
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.arrays import Array
from ringtrain.bench.measure.buffers import NO_BASELINES, NO_WAY, Buffers
from ringtrain.collectives.execution.reduction import WireFormat
from ringtrain.collectives.shared_memory import MAPPED
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Transport

DEADLINE_S = 120.0
ALL_REDUCE = "all-reduce"


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """The job of an all-reduce, or of another collective, for any contender."""

    buffers: Buffers  # memory of the buffers, and the ranks
    numbers: NumberType
    op: str
    target: Array  # [count], holds the result afterwards, and in place, as of an all-reduce, the contribution before
    source: Array | None = None  # [count], the contribution of a collective that has two arrays
    guard: Guard | None = None  # watches the all-reduces; None for none
    memory: str | None = None  # kind of memory that holds them
    collective: str = ALL_REDUCE  # among :data:`ringtrain.bench.measure.collectives.COLLECTIVES`

    @property
    def transport(self) -> Transport:
        return self.buffers.transport

    @property
    def ranks(self) -> int:
        return self.transport.size

    @property
    def root(self) -> int:
        return self.ranks - 1

    @property
    def contribution(self) -> Array:
        """The array that holds the input before a run."""
        return self.target if self.source is None else self.source

    @property
    def nbytes(self) -> int:
        return max(self.target.size, self.contribution.size) * self.numbers.itemsize


@dataclass(frozen=True, slots=True)
class PreparedTrial:
    """A contender, ready to run a job. Those of one contender may have jobs in several kinds of memory."""

    job: MeasuredCollective
    algorithm: str  # name in its row: "ring", or "auto:ring" if auto chose it
    transport: str  # its carrier, as its reduction names it; an external baseline's own name
    run: Callable[[], None]  # all-reduces the job once; collective
    bytes_sent: int | None = None  # bytes that this rank sends in a run; None if unknown
    free: Callable[[], None] = lambda: None  # releases its resources; it is not run again
    why: str | None = None  # reason of auto's choice; None without one
    wire: str = NONE  # name of the messages' type
    way: str = NO_WAY  # name of the way of device memory's messages, if there are several

    @property
    def name(self) -> str:
        return trial_name(self.algorithm, self.wire, self.way)


def trial_name(algorithm: str, wire: str, way: str = NO_WAY) -> str:
    """Return an algorithm with its wire and its way, for people: "ring", "ring (bfloat16)", "ring (staged)"."""
    words = [word for word in (wire if wire != NONE else "", way) if word]
    return f"{algorithm} ({', '.join(words)})" if words else algorithm


class Refusal(RingtrainError):
    """An algorithm cannot do this job here. The message is the reason."""


Baseline = Callable[[MeasuredCollective], Callable[[], None]]


def prepare(
    job: MeasuredCollective,
    algorithm: str,
    tag: int,
    segment_bytes: int,
    baselines: Mapping[str, Baseline] = NO_BASELINES,
    tuning: Table | None = None,
    wire: WireFormat | None = None,
    way: str = NO_WAY,
) -> PreparedTrial:
    """Return the algorithm, ready to run the job. Collective. Raises Refusal, on all ranks alike.

    baselines: external all-reduces by name, each a function that makes a job's; it sums if a mean is asked for
    tuning:    table for ``auto``
    wire:      packs the messages; ``auto`` then chooses among algorithms with messages
    way:       one of the buffers' ways of the algorithm
    """
    if wire is not None:
        _check_wire(job, algorithm, wire, baselines)
    lacking = job.buffers.lacking(job.numbers, job.op)
    if lacking is not None:
        raise Refusal(lacking)
    op = reduction_of(job.op)
    if algorithm == AUTO:
        what = (job.target, job.nbytes, job.numbers.name, op)
        choice = catalogue.agree_on_algorithm(job.transport, *what, tuning, wire is not None)
        chosen = prepare(job, choice.algorithm, tag, segment_bytes, wire=wire)
        return replace(chosen, algorithm=auto_name(choice.algorithm), why=choice.why)
    if algorithm == NATIVE:
        try:
            job.buffers.check_native(job.numbers, op)
        except UsageError as error:
            raise Refusal(str(error)) from error
        native = partial(job.transport.native_allreduce, job.target, op)
        return PreparedTrial(job, NATIVE, job.buffers.over(NATIVE, way), _finished(job, native))
    if algorithm in baselines:
        return PreparedTrial(job, algorithm, algorithm, _finished(job, baselines[algorithm](job)))
    combine, device = job.buffers.combining(job.numbers, job.op)
    try:
        reduction = catalogue.make_allreduce(
            job.buffers.by(way),
            job.target,
            algorithm,
            combine,
            op=op,
            tag=tag,
            segment_bytes=segment_bytes,
            device=device,
            wire=wire,
            dtype=job.numbers.name,
            guard=job.guard,
        )
    except RingtrainError as error:
        raise Refusal(str(error)) from error
    if wire is not None and reduction.transport == MAPPED:
        raise Refusal(f"{algorithm} sends no messages on one node: a wire of {wire.name} would round nothing")

    def reduce() -> None:
        reduction.start()
        reduction.wait(DEADLINE_S)

    carried, over = NONE if wire is None else wire.name, job.buffers.over(reduction.transport, way)
    run = _finished(job, reduce)
    return PreparedTrial(job, algorithm, over, run, reduction.bytes_sent, reduction.free, wire=carried, way=way)


def _check_wire(job: MeasuredCollective, algorithm: str, wire: WireFormat, baselines: Mapping[str, Baseline]) -> None:
    if job.numbers.name != "float32":  # checked here too: the others see our bfloat16 as uint16
        raise Refusal(f"a wire of {wire.name} carries float32, but this is {job.numbers.name}")
    if algorithm == NATIVE or algorithm in baselines:
        raise Refusal(f"{algorithm} sends a buffer as it is: a wire of {wire.name} is for schedules")


def _finished(job: MeasuredCollective, reduce: Callable[[], None]) -> Callable[[], None]:
    """Return a function that reduces and then finishes a mean, in the same way for every algorithm."""
    if job.op != MEAN:
        return reduce

    def run() -> None:
        reduce()
        job.numbers.divide(job.target, job.transport.size)

    return run
