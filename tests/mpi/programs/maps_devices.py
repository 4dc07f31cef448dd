"""Under mpirun: memory of devices that ranks map alike, and the all-reduces that work in it. The devices are not there:
their memory is the processes' own, which NumPy may not read, and which is named and opened as a device's is."""

import gc
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.collectives.algorithms.shards import add_up
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.buckets.reproducible import ReproducibleAllReduce
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from ringtrain.transport.world import connect
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.mpi.programs.moves import run, total

COUNTS = (0, 1, 2, 3, 101, 70_001)


class Device:
    def __init__(self, inner, make_ops):
        self.runtime = HostRuntime(hasty=inner.rank % 2 == 1)
        self.ipc = CudaIpc(inner, self.runtime)
        self.t = DeviceTransport(inner, self.runtime, STAGED, ipc=self.ipc)
        self.ops = make_ops(self.runtime)


def maps(d):
    t = d.t
    assert d.ipc.why == "" and ("CUDA IPC" in t.describe()) == (t.size > 1)
    span = t.allocate(1000, "f4")
    d.ops.upload(np.full(1000, t.rank, "f4"), span)
    d.ops.synchronize()
    t.barrier()
    twins = t.peer_views(span[10:20])
    assert [set(d.ops.to_host(twin)) for twin in twins] == [{float(rank)} for rank in range(t.size)]
    assert t.size == 1 or t.peer_views(t.scratch(5, "f4")) is None
    t.barrier()


def sums(d):
    """Several buckets in flight, every length of interest, again and again, in shared memory and by messages."""
    t, ends = d.t, np.cumsum([0, *COUNTS])
    whole = t.allocate(int(ends[-1]), "f4")
    parts = [whole[a:b] for a, b in pairwise(ends)]
    share = np.arange(whole.size, dtype="f4") % 251
    for name in ("mapped", "ring", "auto"):
        runs = [make_allreduce(t, part, name, d.ops.add, tag=tag, device=d.ops) for tag, part in enumerate(parts)]
        for turn in range(1, 7):
            d.ops.upload((share + t.rank) * turn, whole)
            run(*runs)
            assert (d.ops.to_host(whole) == turn * total(t, share)).all(), (name, turn)


def sums_of_shards(d):
    """In one tree, bitwise, where ranks have several partials too."""
    table = [(name, Parameter("weight", (count,), Fill("constant"))) for name, count in (("a", 3), ("b", 70_001))]
    spans, shards = lay_out(tuple(table)), 8
    whole = d.t.allocate(spans[-1].stop, "f4")
    config = ExchangeConfig(reproducible=True, shards=shards, bucket_bytes=1)
    summing = ReproducibleAllReduce(ExchangeSettings(config, d.t, d.ops))
    flight = summing.bind(spans, whole)
    assert flight.reductions[0].transport == ("messages" if d.t.size == 1 else "mapped"), summing.notes
    for turn in range(3):
        each = np.random.default_rng(turn).standard_normal((shards, whole.size)).astype("f4")
        for shard in range(*summing.shards):
            for span in reversed(spans):
                d.ops.upload(each[shard, span.start : span.stop].copy(), whole[span.start : span.stop])
                summing.shard_grad_ready(span)
                if shard == summing.shards[1] - 1:
                    flight.grad_ready(span)
        flight.wait_all()
        assert d.ops.to_host(whole).tobytes() == add_up(each, np.add).tobytes()


def is_killed(d):
    """With its memory open elsewhere, and others' open in it."""
    d.t.allocate(1 << 16, "f4")
    d.t.barrier()
    if d.t.rank == d.t.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    d.t.barrier()


def main(how: str) -> int:
    from ringtrain.ops.cuda import CudaOps

    inner = connect()
    device = Device(inner, CudaOps if how == "kernels" else FakeGpuOps)
    if how == "killed":
        is_killed(device)
    for check in (maps, sums, sums_of_shards):
        check(device)
    device.t.barrier()
    rank, runtime = inner.rank, device.runtime
    device.t.close()
    assert not runtime._opened
    del device, runtime
    gc.collect()
    left = [line for line in Path("/proc/self/maps").read_text().splitlines() if "ringtrain-fake-device" in line]
    assert not left, left
    if rank == 0:
        print("3 checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
