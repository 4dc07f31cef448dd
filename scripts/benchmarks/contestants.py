"""Further contestants of `scripts/bench allreduce`: ringtrain's own Communicator, as a program of a user calls it, and
torch's gloo. Each works in memory of the kind that its users have."""

import numpy as np

from ringtrain.bench.measure.buffers import ORDINARY, SHARED
from ringtrain.bench.measure.trials import Refusal

COMMUNICATOR = "communicator"  # Communicator.allreduce(array, out=array) of any array
PREPARED = "prepared"  # Communicator.prepare(array), of an array of Communicator.empty
GLOO = "gloo"
CONTESTANTS = (COMMUNICATOR, PREPARED, GLOO)
TENSOR = "tensor"  # memory that torch allocates
# Where each is measured; of two the faster is its row. The MPI's own is there by the sweep's own rule.
MEMORIES = {COMMUNICATOR: (ORDINARY,), PREPARED: (PREPARED,), GLOO: (TENSOR, SHARED)}


def by_communicator(communicator):
    """Return a baseline (:data:`ringtrain.bench.measure.trials.Baseline`) of one call, which copies by pieces."""

    def prepare(job):
        _check_type(job)
        op = _summed(job.op)
        return lambda: communicator.allreduce(job.contribution, op, out=job.target)

    return prepare


def by_preparing(communicator):
    """Return a baseline that is prepared once, in the communicator's memory, where nothing is copied."""

    def prepare(job):
        _check_type(job)
        if job.source is not None:
            raise Refusal("a prepared reduction is in place")
        reduction = communicator.prepare(job.target, _summed(job.op))

        def run() -> None:
            reduction.start()
            reduction.wait()

        return run

    return prepare


def memory_of(communicator):
    """Return an allocation of bytes for :class:`ringtrain.bench.measure.buffers.Buffers`."""
    return lambda nbytes: communicator.empty(-(-nbytes // 8), "float64").view(np.uint8)[:nbytes]


def by_gloo(job):
    """Prepare a job: a baseline."""
    import torch
    from torch.distributed import ReduceOp, all_reduce

    _check_type(job)
    tensor = torch.from_numpy(job.target)
    op = {"max": ReduceOp.MAX, "min": ReduceOp.MIN}.get(job.op, ReduceOp.SUM)

    def run() -> None:
        if job.source is not None:
            np.copyto(job.target, job.source)
        all_reduce(tensor, op)

    return run


def tensor_memory(nbytes: int) -> np.ndarray:
    import torch

    return torch.zeros(nbytes, dtype=torch.uint8).numpy()


def _check_type(job) -> None:
    if job.numbers.name == "bfloat16":
        raise Refusal("bfloat16 is kept as uint16 here, which others would add as whole numbers")


def _summed(op: str) -> str:
    """A mean is a sum here; the sweep divides it."""
    return "sum" if op == "mean" else op
