"""What is compared: every schedule of the catalogue, and the MPI's own all-reduce, each as one thing to run.

A schedule joins by being in the catalogue. What cannot run here is refused with a reason, and never silently left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ringtrain.allreduce import catalogue
from ringtrain.allreduce.catalogue import AUTO, NATIVE, auto_name
from ringtrain.allreduce.dtypes import NumberType
from ringtrain.allreduce.tuning_table import Table
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.bench import texts
from ringtrain.bench.measure.buffers import NO_WAY, Buffers
from ringtrain.collectives.execution.reduction import Reduction, WireFormat
from ringtrain.collectives.shared_memory import MAPPED
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Handle, Transport

DEADLINE_S = 120.0
NO_RIVALS: dict = {}


@dataclass(frozen=True, slots=True)
class MeasuredAllReduce:
    """What is to be all-reduced, whoever does it.

    buffers: where they are, and whose
    target:  [count], holds the result afterwards, and in place the contribution before
    source:  [count], the contribution out of place; None in place
    guard:   watches the all-reduces; None for none
    memory:  the kind of memory that holds them
    """

    buffers: Buffers
    numbers: NumberType
    op: str
    target: object
    source: object = None
    guard: Guard | None = None
    memory: str | None = None

    @property
    def transport(self) -> Transport:
        return self.buffers.transport

    @property
    def contribution(self):
        """Where an input is written before a run."""
        return self.target if self.source is None else self.source

    @property
    def nbytes(self) -> int:
        return self.target.size * self.numbers.itemsize


@dataclass(frozen=True, slots=True)
class PreparedTrial:
    """algorithm:  as its row is named: "ring", or "auto:ring" where it was chosen
    transport:  what carries it, as its reduction says; the name of a rival itself
    run:        all-reduces the job once; collective
    bytes_sent: by this rank in a run; None where nobody tells
    free:       gives back what was prepared; it is not run again
    why:        of a choice; None where there was none
    wire:       what messages are rounded to, by name
    way:        of several ways in which messages of device memory may go, by name
    """

    algorithm: str
    transport: str
    run: Callable[[], None]
    bytes_sent: int | None = None
    free: Callable[[], None] = lambda: None
    why: str | None = None
    wire: str = NONE
    way: str = NO_WAY

    @property
    def name(self) -> str:
        return trial_name(self.algorithm, self.wire, self.way)


def trial_name(algorithm: str, wire: str, way: str = NO_WAY) -> str:
    """An algorithm with its wire and its way, for people: "ring", "ring (bfloat16)", "ring (staged)"."""
    told = [word for word in (wire if wire != NONE else "", way) if word]
    return f"{algorithm} ({', '.join(told)})" if told else algorithm


class ContenderTrial(NamedTuple):
    """A trial with the job that it runs: contestants may have jobs in memory of other kinds."""

    job: MeasuredAllReduce
    trial: PreparedTrial


class Refusal(RingtrainError):
    """An algorithm that does not do this job here. The message is the reason."""


Rival = Callable[[MeasuredAllReduce], Callable[[], None]]


def prepare(
    job: MeasuredAllReduce,
    algorithm: str,
    tag: int,
    segment_bytes: int,
    rivals: Mapping[str, Rival] = NO_RIVALS,
    tuning: Table | None = None,
    wire: WireFormat | None = None,
    way: str = NO_WAY,
) -> PreparedTrial:
    """The algorithm, ready to run the job. Collective. Raises Refusal, on all ranks alike.

    ``rivals``: all-reduces of others by name, each a function that makes a job's; it sums where a mean is wanted.
    ``tuning``: what ``auto`` chooses by. ``wire``: how messages are packed; ``auto`` then chooses among those that can.
    ``way``: one of the buffers' ways of the algorithm.
    """
    if wire is not None:
        _check_wire(job, algorithm, wire, rivals)
    lacking = job.buffers.lacking(job.numbers, job.op)
    if lacking is not None:
        raise Refusal(lacking)
    if algorithm == AUTO:
        what = (job.target, job.nbytes, job.numbers.name, _summed(job.op))
        choice = catalogue.agree_on_algorithm(job.transport, *what, tuning, wire is not None)
        chosen = prepare(job, choice.algorithm, tag, segment_bytes, wire=wire)
        return replace(chosen, algorithm=auto_name(choice.algorithm), why=choice.why)
    if algorithm == NATIVE:
        return PreparedTrial(NATIVE, job.buffers.over(NATIVE, way), _finished(job, _native(job)))
    if algorithm in rivals:
        return PreparedTrial(algorithm, algorithm, _finished(job, rivals[algorithm](job)))
    return _trial(job, _reduction(job, algorithm, tag, segment_bytes, wire, way), algorithm, wire, way)


def _reduction(
    job: MeasuredAllReduce, algorithm: str, tag: int, segment_bytes: int, wire: WireFormat | None, way: str
) -> Reduction:
    combine, device = job.buffers.combining(job.numbers, job.op)
    how = {"op": _summed(job.op), "tag": tag, "segment_bytes": segment_bytes, "wire": wire, "guard": job.guard}
    try:
        reduction = catalogue.make_allreduce(job.buffers.by(way), job.target, algorithm, combine, device=device, **how)
    except RingtrainError as error:
        raise Refusal(str(error)) from error
    if wire is not None and reduction.transport == MAPPED:
        raise Refusal(texts.WIRE_UNUSED(algorithm=algorithm, wire=wire.name))
    return reduction


def _trial(
    job: MeasuredAllReduce, reduction: Reduction, algorithm: str, wire: WireFormat | None, way: str
) -> PreparedTrial:
    run = _finished(job, _reduced(job, reduction))
    carried, over = NONE if wire is None else wire.name, job.buffers.over(reduction.transport, way)
    return PreparedTrial(algorithm, over, run, reduction.bytes_sent, reduction.free, wire=carried, way=way)


def _check_wire(job: MeasuredAllReduce, algorithm: str, wire: WireFormat, rivals: Mapping[str, Rival]) -> None:
    if job.numbers.name != "float32":  # said here too: what is bfloat16 to us is uint16 to others
        raise Refusal(texts.WIRE_TYPE(wire=wire.name, dtype=job.numbers.name))
    if algorithm == NATIVE or algorithm in rivals:
        raise Refusal(texts.WIRE_NOT_HERE(algorithm=algorithm, wire=wire.name))


def _native(job: MeasuredAllReduce) -> Callable[[], None]:
    op = _summed(job.op)
    try:
        job.buffers.check_native(job.numbers, op)
    except UsageError as error:
        raise Refusal(str(error)) from error
    return lambda: job.transport.native_allreduce(job.target, op, job.source)


def _summed(op: str) -> str:
    """A mean is a sum that is divided afterwards."""
    return "sum" if op == "mean" else op


def _reduced(job: MeasuredAllReduce, reduction: Handle) -> Callable[[], None]:
    def run() -> None:
        if job.source is not None:
            job.buffers.copy(job.source, job.target)
        reduction.start()
        reduction.wait(DEADLINE_S)

    return run


def _finished(job: MeasuredAllReduce, reduce: Callable[[], None]) -> Callable[[], None]:
    """Every algorithm finishes a mean in the same way."""
    if job.op != "mean":
        return reduce

    def run() -> None:
        reduce()
        job.numbers.divide(job.target, job.transport.size)

    return run
