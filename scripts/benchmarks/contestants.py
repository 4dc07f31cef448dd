"""Further contestants of `scripts/bench allreduce`: ringtrain's own Communicator, as a program of a user calls it, in
memory of the kind that its users have."""

import numpy as np

from ringtrain.bench.measure.buffers import ORDINARY
from ringtrain.bench.measure.trials import Refusal

COMMUNICATOR = "communicator"  # Communicator.allreduce(array, out=array) of any array
PREPARED = "prepared"  # Communicator.prepare(array), of an array of Communicator.empty
# Where each is measured. The MPI's own is there by the sweep's own rule.
MEMORIES = {COMMUNICATOR: (ORDINARY,), PREPARED: (PREPARED,)}


def by_communicator(communicator):
    """Return a baseline (:data:`ringtrain.bench.measure.trials.Baseline`) of one call, which copies by pieces."""

    def prepare(job):
        op = _checked(job)
        return lambda: communicator.allreduce(job.contribution, op, out=job.target)

    return prepare


def by_preparing(communicator):
    """Return a baseline that is prepared once, in the communicator's memory, where nothing is copied."""

    def prepare(job):
        op = _checked(job)
        if job.source is not None:
            raise Refusal("a prepared reduction is in place")
        reduction = communicator.prepare(job.target, op)
        return lambda: (reduction.start(), reduction.wait())

    return prepare


def memory_of(communicator):
    """Return an allocation of bytes for :class:`ringtrain.bench.measure.buffers.Buffers`."""
    return lambda nbytes: communicator.empty(-(-nbytes // 8), "float64").view(np.uint8)[:nbytes]


def _checked(job) -> str:
    """Return the operation, a sum for a mean, which the sweep divides. Raises Refusal for a type that others lack."""
    if job.numbers.name == "bfloat16":
        raise Refusal("bfloat16 is kept as uint16 here, which others would add as whole numbers")
    return "sum" if job.op == "mean" else job.op
