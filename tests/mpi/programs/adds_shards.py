"""Under mpirun: sums of shards in one tree, in worlds of 1 rank up to all, in shared memory and by messages; rank 0
writes the digest of the weights of each."""

import hashlib

import numpy as np

from ringtrain.config.record import TrainConfig
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import Hyper, make_optimizer
from ringtrain.transport.threads.loopback import LoopbackWorld
from ringtrain.transport.world import connect

ZERO = Fill("constant")
TABLE = tuple((name, Parameter("weight", (count,), ZERO)) for name, count in (("a", 30_001), ("b", 9), ("c", 5000)))


def train(t, shards, algorithm):
    """The digest of the weights after two iterations, and what carried the sums."""
    ops = ReferenceOps("float32")
    arena = Arena(t.allocate, TABLE, "float32")
    config = TrainConfig(reproducible=True, shards=shards, algorithm=algorithm, bucket_bytes=1)
    exchange = AllReduce(ExchangeSettings(config, t, ops))
    exchange.bind(arena, make_optimizer("sgd", arena.spans, Hyper(momentum=0.9)))
    for iteration in range(2):
        exchange.before(iteration, 8, 64)
        for shard in range(*exchange.facts.shards):
            for span in reversed(arena.spans):
                rng = np.random.default_rng([shard, iteration, span.start])
                arena.grads[span.start : span.stop] = rng.standard_normal(span.stop - span.start).astype("f4")
                exchange.shard_grad_ready(span)
                if shard == exchange.facts.shards[1] - 1:
                    exchange.grad_ready(span)
        exchange.finish(iteration, 0.125)
    carried = next(iter(exchange.reducers.training.values())).reductions[0].transport
    weights = hashlib.sha256(arena.weights.tobytes()).hexdigest()
    exchange.reducers.close()
    return weights, carried


def main():
    everyone = connect()
    from mpi4py import MPI  # after connect, which prepares the environment for it

    want = {shards: train(LoopbackWorld(1).transport(0), shards, "auto")[0] for shards in (7, 8)}
    for size in range(1, everyone.size + 1):
        part = MPI.COMM_WORLD.Split(0 if everyone.rank < size else MPI.UNDEFINED)
        if part == MPI.COMM_NULL:
            continue
        t = connect(comm=part)
        for shards, algorithm in ((8, "auto"), (8, "canonical"), (7, "auto")):
            for weights, carried in t.gather_json(train(t, shards, algorithm)):
                assert weights == want[shards], (size, shards, algorithm)
                assert carried == ("mapped" if size > 1 and algorithm == "auto" else "messages")
        t.close()
        if everyone.rank == 0:
            print(f"{size} ranks: {want[8][:16]}", flush=True)
    everyone.close()


main()
