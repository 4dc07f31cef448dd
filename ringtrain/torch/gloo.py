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
        start = getattr(self, "_" + job.collective.replace("-", "_"))
        target, source = (torch.from_numpy(array) for array in (job.target, job.contribution))

        def run() -> None:
            if job.collective in ("all-reduce", "reduce") and job.source is not None:
                target.copy_(source)
            start(job, target, source).wait()

        try:
            run()
        except RuntimeError as error:
            raise Refusal(str(error).splitlines()[0]) from error
        return run

    def _all_reduce(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group.allreduce([target], _options(dist.AllreduceOptions(), job))

    def _reduce(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group.reduce([target], _options(dist.ReduceOptions(), job, root=True))

    def _reduce_scatter(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group._reduce_scatter_base(target, source, _options(dist.ReduceScatterOptions(), job))

    def _broadcast(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group.broadcast([target], _options(dist.BroadcastOptions(), job, root=True))

    def _all_gather(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group._allgather_base(target, source)

    def _all_to_all(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group.alltoall_base(target, source, [], [])

    def _barrier(self, job: MeasuredCollective, target: torch.Tensor, source: torch.Tensor) -> Any:
        return self._group.barrier()


def _options(options: Any, job: MeasuredCollective, root: bool = False) -> Any:
    if hasattr(options, "reduceOp"):
        options.reduceOp = OPERATIONS[job.op]
    if root:
        options.rootRank = job.root
    return options
