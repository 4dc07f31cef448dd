"""Collectives other than the all-reduce as contenders: those of a communicator, and the MPI's own, which block."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ringtrain.allreduce.catalogue import AUTO, NATIVE, NATIVE_TYPES, auto_name
from ringtrain.allreduce.dtypes import MEAN, reduction_of
from ringtrain.arrays import Array
from ringtrain.bench.measure.trials import ALL_REDUCE, Baseline, MeasuredCollective, PreparedTrial, Refusal
from ringtrain.errors import UsageError
from ringtrain.transport.native_call import NativeCall

BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Collective:
    """adds: whether it reduces; rows_in, rows_out: whether the source, the target have a row for each rank; in_place:
    whether it has one array; travels: bus bandwidth / bandwidth of p ranks. Source: nccl-tests, doc/PERFORMANCE.md
    """

    adds: bool = False
    rows_in: bool = False
    rows_out: bool = False
    in_place: bool = False
    travels: Callable[[int], float] = lambda ranks: (ranks - 1) / ranks

    @property
    def has_rows(self) -> bool:
        return self.rows_in or self.rows_out


COLLECTIVES = {
    ALL_REDUCE: Collective(adds=True, in_place=True, travels=lambda ranks: 2 * (ranks - 1) / ranks),
    "reduce-scatter": Collective(adds=True, rows_in=True),
    "all-gather": Collective(rows_out=True),
    "broadcast": Collective(in_place=True, travels=lambda ranks: 1.0),
    "reduce": Collective(adds=True, travels=lambda ranks: 1.0),
    "all-to-all": Collective(rows_in=True, rows_out=True),
    BARRIER: Collective(in_place=True, travels=lambda ranks: 0.0),
}


def prepare_collective(
    job: MeasuredCollective, algorithm: str, communicator: Any, baselines: Mapping[str, Baseline]
) -> PreparedTrial:
    """Return the algorithm, ready to run the job. Collective. Raises Refusal, on all ranks alike.

    communicator: a :class:`ringtrain.Communicator` of the ranks; for ``auto`` it chooses
    """
    if job.collective != BARRIER and (lacking := job.buffers.lacking(job.numbers, job.op)):
        raise Refusal(lacking)
    if algorithm == NATIVE:
        return PreparedTrial(job, NATIVE, NATIVE, _of_mpi(job))
    if algorithm in baselines:
        return PreparedTrial(job, algorithm, algorithm, baselines[algorithm](job))
    if job.numbers.name == "bfloat16" and COLLECTIVES[job.collective].adds:
        raise Refusal("NumPy has no bfloat16 to add: take another type")
    if algorithm != AUTO and job.collective not in BY_SCHEDULES:
        raise Refusal(f"a {job.collective} runs by auto and by mpi: it has no schedules")
    run = CALLS[job.collective](communicator, job, {} if algorithm == AUTO else {"algorithm": algorithm})
    try:
        chosen = communicator.algorithm_of(job.collective, job.numbers.name, algorithm)
        run()
    except UsageError as error:
        raise Refusal(str(error)) from error
    return PreparedTrial(job, auto_name(chosen) if algorithm == AUTO else chosen, OVER.get(chosen, "messages"), run)


BY_SCHEDULES = ("broadcast", "all-gather", "reduce-scatter")
OVER = {"stream": "streamed", NATIVE: NATIVE}


def _rows(array: Array, ranks: int) -> np.ndarray:
    return np.asarray(array).reshape(ranks, -1)


def _reduce(communicator, job: MeasuredCollective, named: dict) -> Callable[[], None]:
    out = job.target if job.transport.rank == job.root else None
    return partial(communicator.reduce, job.source, job.root, job.op, out=out, **named)


def _reduce_scatter(communicator, job: MeasuredCollective, named: dict) -> Callable[[], None]:
    return partial(communicator.reduce_scatter, _rows(job.contribution, job.ranks), job.op, out=job.target, **named)


def _all_gather(communicator, job: MeasuredCollective, named: dict) -> Callable[[], None]:
    return partial(communicator.all_gather, job.source, out=_rows(job.target, job.ranks), **named)


def _all_to_all(communicator, job: MeasuredCollective, named: dict) -> Callable[[], None]:
    rows = [_rows(array, job.ranks) for array in (job.contribution, job.target)]
    return partial(communicator.all_to_all, rows[0], out=rows[1], **named)


CALLS: dict[str, Callable[[Any, MeasuredCollective, dict], Callable[[], None]]] = {
    "reduce": _reduce,
    "reduce-scatter": _reduce_scatter,
    "all-gather": _all_gather,
    "all-to-all": _all_to_all,
    "broadcast": lambda communicator, job, named: partial(communicator.broadcast, job.target, job.root, **named),
    BARRIER: lambda communicator, job, named: partial(communicator.barrier, **named),
}


def _of_mpi(job: MeasuredCollective) -> Callable[[], None]:
    """Return the MPI's own, and the division of a mean."""
    if job.collective == BARRIER:
        return job.transport.barrier
    adds = COLLECTIVES[job.collective].adds
    if adds and job.numbers.name not in NATIVE_TYPES:
        raise Refusal(f"the MPI has no operation on {job.numbers.name}")
    op = reduction_of(job.op) if adds else "sum"
    counts = [job.nbytes // job.ranks] * job.ranks if job.collective == "all-to-all" else ()
    arrays = np.asarray(job.contribution), np.asarray(job.target)
    call = NativeCall(job.collective, *arrays, job.root, op, counts, counts).flat()
    run = partial(job.transport.native_run, call)
    if job.op != MEAN or not adds:
        return run

    def mean() -> None:
        run()
        job.numbers.divide(job.target, job.ranks)

    return mean
