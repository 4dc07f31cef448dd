"""A rank dies in each of the collectives that are named, one after another: cut_collectives.py SEED KIND…
What the survivors get from a call that succeeds is compared with what it has to be."""

import os
import random
import signal
import sys
import threading
import time
import traceback

import numpy as np

from ringtrain.errors import RankLostError
from ringtrain.transport.fault_tolerance import end_job
from ringtrain.transport.native_call import (
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
    NativeCall,
    nothing,
)
from ringtrain.transport.world import connect

LONG = 40_000  # numbers: several messages of an MPI
SOON_S = (0.0, 0.03)  # from the first call of a kind to the death


def ramp(i, start=0, count=LONG):
    return np.arange(count, dtype=np.float64) + i + start


def texts(world, i):
    wanted = [["é" * ((i * 7 + rank * 31) % 90), i, rank] for rank in range(world.size)]
    return world.gather_json(wanted[world.rank]), wanted


def broadcast(world, i):
    root = i % world.size
    array = ramp(i) if world.rank == root else np.full(LONG, -1.0)
    world.broadcast(array, root)
    return array, ramp(i)


def total(world, i, count=LONG):
    return world.size * ramp(i, count=count) + sum(range(world.size))


def all_reduce(world, i):
    array = ramp(i, world.rank)
    world.native_allreduce(array)
    return array, total(world, i)


def two_sums(world, i):
    arrays = [ramp(2 * i + k, world.rank, 4) for k in range(2)]
    handles = [world.native_allreduce_start(array) for array in arrays]
    for handle in reversed(handles):
        handle.wait(60)
    return np.array(arrays), np.array([total(world, 2 * i + k, 4) for k in range(2)])


def barriers(world, i):
    for barrier in (world.barrier, world.node_barrier):
        barrier()
    return 0, 0


def memory(world, i):
    array = world.allocate(4, np.float64)
    array[:] = i + world.rank
    world.barrier()
    views = world.peer_views(array)
    assert views is not None
    return np.array(views), np.array([np.full(4, i + rank) for rank in range(world.size)])


def native(kind):
    """The kind as a non-blocking call of the MPI."""

    def run(world, i):
        rank, size, root = world.rank, world.size, i % world.size
        ours, many, one = ramp(i, rank, 8), np.full(8 * size, -1.0), np.full(8, -1.0)
        rows, turned, every = (  # one for each rank: to send, of an exchange, of a gathering
            np.concatenate([ramp(i, start, 8) for start in starts])
            for starts in (range(10 * rank, 10 * rank + size), range(rank, 10 * size + rank, 10), range(size))
        )
        counts = {"send_counts": [64] * size, "recv_counts": [64] * size}
        send, recv, more, wanted = {
            BROADCAST: (nothing(), ours, {"root": root}, ramp(i, root, 8)),
            ALL_GATHER: (ours, many, {}, every),
            GATHER: (ours, many, {"root": root}, every if rank == root else many.copy()),
            SCATTER: (rows, one, {"root": root}, ramp(i, 10 * root + rank, 8)),
            ALL_TO_ALL: (rows, many, counts, turned),
            REDUCE_SCATTER: (rows, one, {}, size * ramp(i, rank, 8) + 10 * sum(range(size))),
        }[kind]
        world.native_start(NativeCall(kind, send, recv, **more)).wait(60)
        return recv, wanted

    return run


NATIVE = BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL, REDUCE_SCATTER
KINDS = {
    "texts": texts,
    "broadcast": broadcast,
    "all-reduce": all_reduce,
    "two sums": two_sums,
    "barriers": barriers,
    "memory": memory,
    **{f"native {kind}": native(kind) for kind in NATIVE},
}


def die(delay_s):
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def until_a_death(world, kind, moment):
    """The number of right results before the death that ends this world."""
    if world.rank == moment.randrange(world.size):
        threading.Thread(target=die, args=[moment.uniform(*SOON_S)]).start()
    i = 0
    while True:
        try:
            got, wanted = KINDS[kind](world, i)
        except RankLostError:
            return i
        assert np.array_equal(got, wanted), f"{kind}, call {i}, rank {world.rank} of {world.size}: {got} for {wanted}"
        i += 1


def main(seed, *kinds):
    from ringtrain.transport.mpi.ulfm_recovery import survive

    world, moment = connect(), random.Random(int(seed))
    for kind in kinds:
        calls = until_a_death(world, kind, moment)
        world = survive(world, {}, lambda facts: (facts["rank"],)).transport
        print(f"{kind}: {calls} right, {world.size} ranks are left\n", end="", flush=True)
    os._exit(0)  # an MPI that is ended in good order waits for the dead


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        end_job()
