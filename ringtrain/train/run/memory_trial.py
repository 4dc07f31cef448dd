"""Tries one iteration before the first, and names the options that take less if it does not fit in device memory."""

from ringtrain.data.batches.batches import Batch
from ringtrain.errors import DeviceFullError
from ringtrain.ops.base import Ops
from ringtrain.train.assembly import batch_norm
from ringtrain.train.assembly.assemble import Assembly


def rehearse(run: Assembly, ops: Ops, batch: Batch) -> None:
    """Run every kernel of an iteration and an evaluation once, on arrays of full size. Raises DeviceFullError."""
    try:
        run.worker.rehearse(batch)
        if ops.records:
            run.evaluator.rehearse(batch, run.data.test or run.data.train, run.evaluation_batch)
    except DeviceFullError as error:
        raise DeviceFullError(f"{error}. {_advice(run)}") from error


def _advice(run: Assembly) -> str:
    config = run.config
    parts = "--shards" if config.exchange.reproducible else "--accumulate"
    options = [f"more {parts}, which computes in smaller parts", "a smaller --batch"]
    if not (config.device.recompute or batch_norm.is_whole(config.model.batch_norm)):
        options.append("--recompute, which keeps fewer activations")
    if config.device.precision == "float32":
        options.append("--precision bfloat16, whose activations take half")
    return f"{run.at_a_time} examples at a time do not fit: give {', or '.join(options)}, or smaller images"
