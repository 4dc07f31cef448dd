"""Tries one iteration before the first, and describes the sizes that fit if it does not fit in device memory."""

from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import largest_part
from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.humanize import format_bytes
from ringtrain.ops.base import Ops
from ringtrain.train.assembly import batch_norm
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.step.partition import with_rows

USABLE = 0.92  # of a device's memory: the rest is the driver's, the libraries', and what lies between arrays


def rehearse(run: Assembly, ops: Ops, batch: Batch) -> None:
    """Run every kernel of an iteration and an evaluation once, on arrays of full size. Raises DeviceFullError."""
    try:
        run.worker.rehearse(batch)
        if ops.records:
            run.evaluator.rehearse(batch, run.data.test or run.data.train, run.evaluation_batch)
    except DeviceFullError as error:
        raise DeviceFullError(_advice(run, ops, batch, error)) from error


def _advice(run: Assembly, ops: Ops, batch: Batch, error: DeviceError) -> str:
    """The examples that do not fit, those that would if no other process uses the device, and the options to set."""
    passes, space = run.worker.passes, run.worker.space
    passes.forget()
    try:
        run.worker.rehearse(with_rows(batch, lambda array: array[:1]))
        each = space.nbytes
    except DeviceFullError:
        return _smaller(f"{error}. Not even one example fits beside weights, gradients and the optimizer's state", run)
    finally:
        passes.forget()
    fixed = 2 * run.arena.count * ops.dtype.itemsize + (run.exchange.facts.state_bytes or 0)
    _, total = ops.memory() or (0, 0)
    examples = max(0, int((USABLE * total - fixed) // each)) if each else 0
    config, ranks = run.config, len(run.roles.trainers)
    share, fit = largest_part(config.run.batch, ranks, run.grain), examples // run.grain * run.grain
    problem = (
        f"{run.at_a_time} examples at a time do not fit in the {format_bytes(total)} of a rank's device: weights, "
        f"gradients and optimizer take {format_bytes(fixed)}, and each example {format_bytes(each)}"
    )
    if not fit:
        return _smaller(problem, run)
    if config.exchange.reproducible:
        shards, batch_size = -(-config.run.batch // fit), fit * config.exchange.shards
        return f"{problem}. About {fit} fit: give --shards {shards}, or --batch {batch_size}{_less(run)}"
    return (
        f"{problem}. About {fit} fit: give --accumulate {-(-share // fit)}, which computes the same in parts, or "
        f"--batch {fit * ranks}{_less(run)}"
    )


def _less(run: Assembly) -> str:
    """What makes activations less, of the options that the run could take."""
    again = run.config.device.recompute or batch_norm.is_whole(run.config.model.batch_norm)
    half = run.config.device.precision == "float32"
    return ("" if again else ", or --recompute, which keeps fewer activations") + (
        ", or --precision bfloat16, whose activations take half" if half else ""
    )


def _smaller(problem: str, run: Assembly) -> str:
    return f"{problem}: use smaller images or another model{_less(run)}, or more memory"
