"""The command ``ringtrain bench-allreduce``."""

import os

import click

from ringtrain import plugin
from ringtrain.api.communicator import Communicator
from ringtrain.bench.sweep.run import BenchDevices, BenchOptions, Beside, run
from ringtrain.cli.doctor import MAKER
from ringtrain.cli.options import flags_of, plugin_option
from ringtrain.cli.world import in_world
from ringtrain.errors import UsageError
from ringtrain.launch.binding import bind
from ringtrain.transport.agree import agree
from ringtrain.transport.base import Transport
from ringtrain.transport.world import choose_way


@click.command("bench-allreduce")
@plugin_option
@flags_of(BenchOptions)
def bench_allreduce(**flags):
    """Compare all-reduce algorithms, or other collectives, the MPI's own among them: times, bounds, correctness.

    Run it under mpirun. Columns and how to read them: docs/all-reduces.md. Exits with 1 if a result is wrong or a limit
    is not met.
    """

    def action(transport: Transport) -> int:
        agree(transport, plugin.facts())
        return run(transport, BenchOptions(**flags), real_cuda, Beside(Communicator, gloo))

    return in_world(action)


def gloo(transport: Transport):
    """Return PyTorch's own collectives. Collective. Raises UsageError without PyTorch."""
    try:
        from ringtrain.torch.gloo import Gloo
    except ImportError as error:
        raise UsageError(
            f"--algorithm gloo is of PyTorch, and {error}: pip install torch, or leave gloo out"
        ) from error
    return Gloo(transport)


def real_cuda(transport: Transport) -> BenchDevices:
    from ringtrain.ops.cuda import CudaOps
    from ringtrain.ops.cuda.cupy_runtime import make_runtime, visible_devices

    def index() -> int:
        return bind(os.environ, visible_devices(), transport.local_rank)

    return BenchDevices(index, make_runtime, CudaOps, lambda world, number: choose_way(world, "auto", number, MAKER))
