"""Under mpirun: `bench-allreduce --device cuda`, on devices that are not there: their memory is the processes' own."""

import json
import sys

from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.model import calibration, copies
from ringtrain.bench.sweep.sweep import Sweep, sweep
from ringtrain.cli.devices import BenchDevices, with_device
from ringtrain.transport.cuda_aware.decision import YES, CudaDecision, Evidence
from ringtrain.transport.world import connect
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime

copies.COPY_BYTES = 1 << 16
calibration.RATE_BYTES, calibration.REPEATS, calibration.ALPHA_ROUNDS = (1 << 12,), 2, 2


def no_nccl():
    raise ImportError("there is no device")


if __name__ == "__main__":
    world = connect()
    choice = CudaDecision("direct", "that was tried", (Evidence("trial", YES, ""),))
    cuda = BenchDevices(
        lambda: 0, lambda index: HostRuntime(), lambda runtime, dtype: FakeGpuOps(runtime, dtype), lambda t, i: choice
    )
    asked = Sweep((64, 70_000), ("mpi", "mapped", "ring", "nccl"), protocol=Protocol(repeats=3, warm_up=1))
    transport, asked, buffers, close = with_device(world, asked, cuda, no_nccl)
    found = sweep(transport, asked, buffers=buffers)
    close()
    rank, runtime = world.rank, buffers.runtime
    world.close()
    assert not runtime._opened
    if rank == 0:
        print(
            json.dumps([[row[k] for k in ("algorithm", "way", "transport", "status", "wrong")] for row in found.rows])
        )
    sys.exit(0)
