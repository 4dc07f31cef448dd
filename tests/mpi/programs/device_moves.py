"""Under mpirun: device memory between ranks, staged and by its address. The device is not there: its memory is this
process's, which an MPI can use and NumPy may not."""

import numpy as np

from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport
from ringtrain.transport.world import connect
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.host_memory import DeviceArray
from tests.mpi.programs.moves import DEADLINE_S, run
from tests.says import says


class Device:
    def __init__(self, inner, way):
        self.runtime = HostRuntime()
        self.t = DeviceTransport(inner, self.runtime, way, segment_bytes=1 << 12)
        self.stream = self.runtime.stream()

    def put(self, array, host):
        self.runtime.upload(np.ascontiguousarray(host), array, self.stream)
        self.stream.synchronize()

    def get(self, array):
        host = np.zeros(array.size, array.dtype)
        self.runtime.download(array, host, self.stream)
        return host

    def add(self, a, b, y):
        self.put(y, self.get(a) + self.get(b))


def moves(d):
    """Around a ring, in two tags started in different orders at the two ends, with host memory beside it."""
    t = d.t
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    for count in (0, 1, 1000, 70_001):
        out, into = ([t.allocate(count, "f4") for _ in range(2)] for _ in range(2))
        note, heard = np.zeros(3), np.zeros(3)
        sends = [t.sends([(right, note), (right, out[0])], 0), t.sends([(right, out[1])], 1)]
        recvs = [t.recvs([(left, heard), (left, into[0])], 0), t.recvs([(left, into[1])], 1)]
        for turn in range(3):
            note[:] = turn + t.rank
            for tag in (0, 1):
                d.put(out[tag], np.arange(count, dtype="f4") + turn + 10 * tag + t.rank)
            run(*recvs[::-1], *sends)
            assert (heard == turn + left).all()
            for tag in (0, 1):
                assert (d.get(into[tag]) == np.arange(count) + turn + 10 * tag + left).all()


def sums(d):
    """By schedules, and by the MPI, which gets host memory alone."""
    t, share = d.t, np.arange(10_007, dtype="f4") % 251
    span, want = t.allocate(share.size, "f4"), t.size * share + t.size * (t.size - 1) // 2
    assert isinstance(span, DeviceArray)
    for name in ("ring", "butterfly", "sliced"):
        execution = Execution(make_schedule(name, t.size), t, span, d.add, 2, segment_bytes=3000)
        for _ in range(2):
            d.put(span, share + t.rank)
            run(execution)
            assert (d.get(span) == want).all(), name
    d.put(span, share + t.rank)
    t.native_allreduce(span)
    assert (d.get(span) == want).all()
    parts = [span[:100], span[100:5000], span[5000:]]
    d.put(span, share + t.rank)
    handles = [t.native_allreduce_start(part) for part in parts]
    if t.rank == 0:
        t.barrier()
    for handle in handles[:: 1 if t.rank else -1]:
        handle.wait(DEADLINE_S)
    if t.rank:
        t.barrier()
    assert (d.get(span) == want).all()
    bits = t.allocate(9, "f2")  # few MPIs have such numbers
    d.put(bits, np.full(9, 1.5 + t.rank, "f2"))
    t.native_allreduce(bits)
    assert (d.get(bits) == sum(1.5 + rank for rank in range(t.size))).all()
    d.put(span, share + t.rank)
    t.broadcast(span, t.size - 1)
    assert (d.get(span) == share + t.size - 1).all()


if __name__ == "__main__":
    inner = connect()
    for way in (STAGED, DIRECT):
        device = Device(inner, way)
        for check in (moves, sums):
            check(device)
            device.t.barrier()
    words, rank = device.t.describe(), inner.rank
    device.t.close()
    if rank == 0:
        print("4 checks passed", says(inner.describe(), "passed", "address").matches(words), sep="\n")
