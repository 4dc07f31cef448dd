"""What is compared: every schedule of the catalogue, and the MPI's own all-reduce, each as one thing to run.

A schedule joins by being in the catalogue. What cannot run here is refused with a reason, and never silently left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ringtrain.bench.numbers import NumberType
from ringtrain.collectives.reduction import Reduction
from ringtrain.errors import RingtrainError, TransportError
from ringtrain.exchange import reductions
from ringtrain.exchange.guard import Guard
from ringtrain.exchange.reductions import NATIVE
from ringtrain.transport.base import Transport

DEADLINE_S = 120.0
NO_RIVALS: dict = {}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be all-reduced, whoever does it.

    target: [count], holds the result afterwards, and in place the contribution before
    source: [count], the contribution out of place; None in place
    guard:  watches the all-reduces; None for none
    """

    transport: Transport
    numbers: NumberType
    op: str
    target: np.ndarray
    source: np.ndarray | None = None
    guard: Guard | None = None

    @property
    def contribution(self) -> np.ndarray:
        """Where an input is written before a run."""
        return self.target if self.source is None else self.source

    @property
    def nbytes(self) -> int:
        return self.target.size * self.numbers.itemsize


@dataclass(frozen=True, slots=True)
class Trial:
    """run:        all-reduces the job once; collective
    bytes_sent: by this rank in a run; None where that is not known: all but schedules
    """

    algorithm: str
    run: Callable[[], None]
    bytes_sent: int | None


class Refusal(RingtrainError):
    """An algorithm that does not do this job here. The message is the reason."""


Rival = Callable[[Job], Callable[[], None]]


def prepare(job: Job, algorithm: str, tag: int, segment_bytes: int, rivals: Mapping[str, Rival] = NO_RIVALS) -> Trial:
    """The algorithm, ready to run the job. Collective. Raises Refusal, on all ranks alike.

    ``rivals``: all-reduces of others by name, each a function that makes a job's; it sums where a mean is wanted.
    """
    if job.op == "mean" and job.numbers.integral:
        raise Refusal("the mean of whole numbers is none: use sum")
    if algorithm == NATIVE:
        return Trial(NATIVE, _finished(job, _native(job)), None)
    if algorithm in rivals:
        return Trial(algorithm, _finished(job, rivals[algorithm](job)), None)
    combine, op = job.numbers.combine(job.op), _summed(job.op)
    try:
        reduction = reductions.prepare(
            job.transport, job.target, algorithm, combine, op=op, tag=tag, segment_bytes=segment_bytes, guard=job.guard
        )
    except RingtrainError as error:
        raise Refusal(str(error)) from error
    return Trial(algorithm, _finished(job, _reduced(job, reduction)), reduction.bytes_sent)


def _native(job: Job) -> Callable[[], None]:
    # Open MPI has no such type, takes the bits for whole numbers, adds those, and reports success.
    if job.numbers.name == "bfloat16":
        raise Refusal("MPI has no bfloat16: it would add the bits as whole numbers")
    op = _summed(job.op)
    try:
        job.transport.native_allreduce(np.zeros(1, job.numbers.storage), op)
    except (TransportError, KeyError) as error:  # KeyError: mpi4py found no MPI type for the elements
        raise Refusal(f"MPI does not reduce {job.numbers.name} by {op}: {error}") from error
    return lambda: job.transport.native_allreduce(job.target, op, job.source)


def _summed(op: str) -> str:
    """A mean is a sum that is divided afterwards."""
    return "sum" if op == "mean" else op


def _reduced(job: Job, reduction: Reduction) -> Callable[[], None]:
    def run() -> None:
        if job.source is not None:
            np.copyto(job.target, job.source)
        reduction.start()
        reduction.wait(DEADLINE_S)

    return run


def _finished(job: Job, reduce: Callable[[], None]) -> Callable[[], None]:
    """Every algorithm finishes a mean in the same way."""
    if job.op != "mean":
        return reduce

    def run() -> None:
        reduce()
        job.numbers.divide(job.target, job.transport.size)

    return run
