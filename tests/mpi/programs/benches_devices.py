"""Under mpirun: `bench-allreduce --device cuda`, on devices that are not there: their memory is the processes' own."""

import json
from dataclasses import replace

from ringtrain.bench.measure import links
from ringtrain.bench.measure.nccl import Nccl
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.run import BenchDevices, device_buffers
from ringtrain.bench.sweep.sweep import Sweep, sweep
from ringtrain.transport.cuda_aware.decision import YES, CudaDecision, Evidence
from ringtrain.transport.world import connect
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime

links.RATE_BYTES, links.REPEATS, links.ALPHA_ROUNDS = (1 << 12,), 2, 2


def no_nccl():
    raise ImportError("there is no device")


if __name__ == "__main__":
    world = connect()
    choice = CudaDecision("direct", "that was tried", (Evidence("trial", YES, ""),))
    cuda = BenchDevices(
        lambda: 0, lambda index: HostRuntime(), lambda runtime, dtype: FakeGpuOps(runtime, dtype), lambda t, i: choice
    )
    buffers, note = device_buffers(world, cuda)
    nccl = Nccl(buffers, no_nccl)
    asked = Sweep((64, 70_000), ("mpi", "mapped", "ring", "nccl"), protocol=Protocol(repeats=3, warm_up=1))
    result = sweep(buffers.transport, replace(asked, baselines={"nccl": nccl}), buffers=buffers)
    nccl.close()
    rank, runtime = world.rank, buffers.runtime
    world.close()
    assert not runtime._opened
    if rank == 0:
        print(f"# {note}")
        columns = ("algorithm", "way", "transport", "status", "wrong")
        print(json.dumps([[row[name] for name in columns] for row in result.rows]))
