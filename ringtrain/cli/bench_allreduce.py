"""The command ``ringtrain bench-allreduce``."""

import os

import click

from ringtrain import plugin
from ringtrain.bench.sweep.run import BenchDevices, BenchOptions, run
from ringtrain.cli.doctor import MAKER
from ringtrain.cli.options import plugin_option
from ringtrain.cli.values import flags_of
from ringtrain.cli.world import in_world
from ringtrain.launch.binding import bind
from ringtrain.transport.agree import agree
from ringtrain.transport.base import Transport
from ringtrain.transport.world import choose_way


@click.command("bench-allreduce")
@plugin_option
@flags_of(BenchOptions)
def bench_allreduce(**flags):
    """Compare all-reduce algorithms, the MPI's own among them: times, bounds, correctness.

    Run it under mpirun. Columns and how to read them: docs/bench.md. Exits with 1 if a result is wrong or a limit
    is not met.
    """

    def action(transport: Transport) -> int:
        agree(transport, plugin.facts())
        return run(transport, BenchOptions(**flags), real_cuda)

    return in_world(action)


def real_cuda(transport: Transport) -> BenchDevices:
    from ringtrain.ops.cuda import CudaOps
    from ringtrain.ops.cuda.cupy_runtime import make_runtime, visible_devices

    def index() -> int:
        return bind(os.environ, visible_devices(), transport.local_rank)

    return BenchDevices(index, make_runtime, CudaOps, lambda world, number: choose_way(world, "auto", number, MAKER))
