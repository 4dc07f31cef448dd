"""PyTorch's gloo as a baseline of ``ringtrain bench-allreduce``: its collectives on the same memory."""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringtrain.bench.measure.trials import MeasuredCollective, Refusal
from ringtrain.transport.base import Transport

LIMIT = timedelta(seconds=120)
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Gloo:
    """Prepares jobs (:data:`ringtrain.bench.measure.trials.Baseline`), in one process group. Collective to make: it
    opens ports of this machine."""

    def __init__(self, transport: Transport):
        host = transport.gather_json(socket.gethostname())[0]
        server = dist.TCPStore(host, 0, is_master=True, timeout=LIMIT) if transport.rank == 0 else None
        port = transport.gather_json(server.port if server is not None else 0)[0]
        store = server or dist.TCPStore(host, port, timeout=LIMIT)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("bench", store), transport.rank, transport.size, LIMIT)

    def __call__(self, job: MeasuredCollective) -> Callable[[], None]:
        """Prepare a job. Raises Refusal, on all ranks alike."""
        if job.numbers.name == "bfloat16" or (job.op not in OPERATIONS):
            raise Refusal(
                f"gloo is measured by sum, max and min of NumPy's types, and this is {job.op} of {job.numbers.name}"
            )
        start, group = STARTS[job.collective], self._group
        target, source = (torch.from_numpy(array) for array in (job.target, job.contribution))

        def run() -> None:
            if job.collective == "reduce":
                target.copy_(source)
            start(group, job, target, source).wait()

        try:
            run()
        except RuntimeError as error:
            raise Refusal(str(error).splitlines()[0]) from error
        return run


def _options(options: Any, job: MeasuredCollective, root: bool = False) -> Any:
    if hasattr(options, "reduceOp"):
        options.reduceOp = OPERATIONS[job.op]
    if root:
        options.rootRank = job.root
    return options


# By the group, the job, its target and its source, of which gloo's calls take one or both.
STARTS: dict[str, Callable[[Any, MeasuredCollective, torch.Tensor, torch.Tensor], Any]] = {
    "all-reduce": lambda group, job, y, _: group.allreduce([y], _options(dist.AllreduceOptions(), job)),
    "reduce": lambda group, job, y, _: group.reduce([y], _options(dist.ReduceOptions(), job, root=True)),
    "reduce-scatter": lambda group, job, y, x: group._reduce_scatter_base(
        y, x, _options(dist.ReduceScatterOptions(), job)
    ),
    "broadcast": lambda group, job, y, _: group.broadcast([y], _options(dist.BroadcastOptions(), job, root=True)),
    "all-gather": lambda group, job, y, x: group._allgather_base(y, x),
    "all-to-all": lambda group, job, y, x: group.alltoall_base(y, x, [], []),
    "barrier": lambda group, *_: group.barrier(),
}
