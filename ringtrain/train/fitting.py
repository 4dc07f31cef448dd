"""Whether an iteration fits in the memory of a device, found out before the first; and what would."""

from dataclasses import dataclass, replace

from ringtrain.data.batches import Batch
from ringtrain.data.sampler import largest_share
from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.humanize import format_bytes
from ringtrain.ops.base import Ops
from ringtrain.train.assemble import Assembly
from ringtrain.train.parts import PER_EXAMPLE

USABLE = 0.92  # of a device's memory: the rest is the driver's, the libraries', and what lies between arrays


@dataclass(frozen=True, slots=True)
class Need:
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
    run.worker.forget()
    try:
        need = _need(run, ops, batch)
    except DeviceFullError:
        return f"{error}. Not even one example fits beside weights, gradients and the optimizer's state{_else(run)}"
    finally:
        run.worker.forget()
    return say(need, run)


def _need(run: Assembly, ops: Ops, batch: Batch) -> Need:
    """Measured on one example."""
    one = replace(batch, **{name: getattr(batch, name)[:1] for name in PER_EXAMPLE})
    run.worker.rehearse(one)
    arena = run.arena
    fixed = 2 * arena.count * ops.dtype.itemsize + (run.exchange.state_bytes or 0)
    return Need(fixed, run.worker.space.nbytes, ops.memory()[1])


def say(need: Need, run: Assembly) -> str:
    """What does not fit, what would, and how to get there."""
    config, ranks = run.config, len(run.roles.trainers)
    share, fit = largest_share(config.batch, ranks, run.grain), need.examples // run.grain * run.grain
    told = (
        f"{run.at_a_time} examples at a time do not fit in the {format_bytes(need.total)} of a rank's device: weights, "
        f"gradients and optimizer take {format_bytes(need.fixed)}, and each example {format_bytes(need.each)}"
    )
    if not fit:
        return f"{told}{_else(run)}"
    if config.reproducible:
        return f"{told}. About {fit} fit: give --shards {-(-config.batch // fit)}, or --batch {fit * config.shards}"
    return (
        f"{told}. About {fit} fit: give --accumulate {-(-share // fit)}, which computes the same in parts, or --batch "
        f"{fit * ranks}{_less(run)}"
    )


def _less(run: Assembly) -> str:
    return ", or --precision bfloat16, whose activations take half" if run.config.precision == "float32" else ""


def _else(run: Assembly) -> str:
    return f": use smaller images or another model{_less(run)}, or more memory"
