"""Tries, before the first, whether an iteration fits in device memory; else says what would fit."""

from dataclasses import dataclass, replace

from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import largest_part
from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.humanize import format_bytes
from ringtrain.ops.base import Ops
from ringtrain.train import texts
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.step.partition import PER_EXAMPLE

USABLE = 0.92  # of a device's memory: the rest is the driver's, the libraries', and what lies between arrays


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes: fixed, of weights, gradients and the optimizer's state; each, of an example; total, of the device"""

    fixed: int
    each: int
    total: int

    @property
    def examples(self) -> int:
        """That fit, about, if nobody else has the device."""
        return max(0, int((USABLE * self.total - self.fixed) // self.each))


def rehearse(run: Assembly, ops: Ops, batch: Batch) -> None:
    """Every kernel of an iteration and of an evaluation, once, on arrays of full size. Raises DeviceFullError."""
    try:
        run.worker.rehearse(batch)
        if ops.records:
            run.evaluator.rehearse(batch, run.data.test or run.data.train, run.evaluation_batch)
    except DeviceFullError as error:
        raise DeviceFullError(_advice(run, ops, batch, error)) from error


def _advice(run: Assembly, ops: Ops, batch: Batch, error: DeviceError) -> str:
    run.worker.passes.forget()
    try:
        need = _need(run, ops, batch)
    except DeviceFullError:
        return _smaller(texts.NOT_ONE_FITS(error=error), run)
    finally:
        run.worker.passes.forget()
    return say(need, run)


def _need(run: Assembly, ops: Ops, batch: Batch) -> MemoryNeed:
    """Measured on one example."""
    one = replace(batch, **{name: getattr(batch, name)[:1] for name in PER_EXAMPLE})
    run.worker.rehearse(one)
    arena = run.arena
    fixed = 2 * arena.count * ops.dtype.itemsize + (run.exchange.facts.state_bytes or 0)
    return MemoryNeed(fixed, run.worker.space.nbytes, ops.memory()[1])


def say(need: MemoryNeed, run: Assembly) -> str:
    """The advice: the examples that do not fit, those that would, and the options to set."""
    config, ranks = run.config, len(run.roles.trainers)
    share, fit = largest_part(config.batch, ranks, run.grain), need.examples // run.grain * run.grain
    total, fixed, each = map(format_bytes, (need.total, need.fixed, need.each))
    problem = texts.DOES_NOT_FIT(examples=run.at_a_time, total=total, fixed=fixed, each=each)
    if not fit:
        return _smaller(problem, run)
    if config.reproducible:
        shards, batch = -(-config.batch // fit), fit * config.shards
        return texts.MORE_SHARDS(problem=problem, fit=fit, shards=shards, batch=batch)
    parts, batch = -(-share // fit), fit * ranks
    return texts.ACCUMULATE(problem=problem, fit=fit, parts=parts, batch=batch, precision=_less(run))


def _less(run: Assembly) -> str:
    return texts.HALF_PRECISION() if run.config.precision == "float32" else ""


def _smaller(problem: str, run: Assembly) -> str:
    return texts.SMALLER(problem=problem, precision=_less(run))
