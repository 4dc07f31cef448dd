"""The child of a trial: moves device memory from rank to rank, staged and direct. Not for people.

    mpirun -n 2 python -m ringtrain.transport.cuda_probe MODULE:MAKER DEVICE[,DEVICE] SECONDS

MAKER(DEVICE) makes the Runtime of a device. Rank 0 prints each step before it begins, so that the output of a crash
names its step.
"""

import importlib
import json
import signal
import sys
import time

import numpy as np

from ringtrain.errors import RingtrainError
from ringtrain.transport.base import Transport
from ringtrain.transport.cuda_aware.trial import MARK
from ringtrain.transport.deadline import Deadline

# Below and above the size at which MPIs change from sending at once to a rendezvous; the last one is timed.
SIZES = (1, 1000, 65_537, 1 << 20, 8 << 20)
TIMES = 5
TAG = 7


def probe(arguments: list[str]) -> int:
    """Run the trial. Returns the exit status."""
    maker, devices, seconds = arguments
    Deadline(float(seconds), -signal.SIGALRM).start()  # ends this rank even if mpirun is gone
    numbers = [int(number) for number in devices.split(",")]
    module, name = maker.split(":")
    try:
        make = getattr(importlib.import_module(module), name)
        make(numbers[0])  # before an MPI is loaded: without a device the answer is quick
    except (RingtrainError, ImportError) as error:
        _say({"device": str(error).splitlines()[0]})
        return 0
    from ringtrain.transport.world import connect

    transport = connect()
    moved = _try(transport, make(numbers[transport.rank % len(numbers)]))
    if transport.rank == 0:
        _say(moved)
    transport.close()
    return 0


def _try(transport: Transport, runtime) -> dict:
    """Return the last line of rank 0."""
    from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport

    rates = {}
    for way in (STAGED, DIRECT):
        world = DeviceTransport(transport, runtime, way)
        for nbytes in SIZES:
            step = f"{way} messages of {nbytes:,} bytes"
            if transport.rank == 0:
                _say({"at": step})
            right, seconds = _exchange(world, runtime, nbytes)
            if not all(transport.gather_json(right)):
                return {"wrong": step}
        rates[f"{way}_gbs"] = nbytes / max(transport.gather_json(seconds)) / 1e9
    return rates


def _exchange(world, runtime, nbytes: int) -> tuple[bool, float]:
    """Exchange ``nbytes`` both ways at once. Returns (whether the bytes arrived as sent, seconds of the fastest of
    some).
    """
    peer, stream = 1 - world.rank, runtime.stream()
    out, into = world.allocate(nbytes, np.uint8), world.allocate(nbytes, np.uint8)
    runtime.upload(_pattern(world.rank, nbytes), out, stream)
    stream.synchronize()
    recv, send = world.recvs([(peer, into)], TAG), world.sends([(peer, out)], TAG)
    fastest = float("inf")
    for _ in range(TIMES):
        world.barrier()
        began = time.perf_counter()
        recv.start()
        send.start()
        for handle in (send, recv):
            handle.wait(30.0)
        fastest = min(fastest, time.perf_counter() - began)
    arrived = np.zeros(nbytes, np.uint8)
    runtime.download(into, arrived, stream)
    stream.synchronize()
    return bool((arrived == _pattern(peer, nbytes)).all()), fastest


def _pattern(rank: int, nbytes: int) -> np.ndarray:
    return np.resize(np.arange(251, dtype=np.uint8) + np.uint8(rank), nbytes)


def _say(record: dict) -> None:
    print(MARK + json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(probe(sys.argv[1:]))
