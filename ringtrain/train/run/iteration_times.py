"""Times iterations of training on random examples, without an exchange of gradients."""

import time
from functools import partial
from itertools import chain, pairwise

import numpy as np

from ringtrain.config.record import TrainConfig
from ringtrain.nn.graph import Graph
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.batch_norm import grain_of
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.transport.agree import take_turns

NEVER = ENDLESS = 1 << 40  # iterations between averages; of a run
LEAST_RATE = 1e-20  # of learning: so weights stay, and their loss finite


def without_exchange(config: TrainConfig, graph: Graph, ranks: int, iterations: int) -> TrainConfig:
    """Return the configuration of so many iterations on random examples, in which ranks sum their losses alone, and
    keep their weights. Where a batch has fewer ghost batches than ranks, a rank's part is one."""
    alone = config.changed(synthetic=True, iterations=iterations, epochs=None)
    alone = alone.changed(lr=LEAST_RATE, lr_policy="constant", lr_steps=(), min_lr=0.0, base_batch=None, warmup=0)
    if ranks > 1:  # one rank exchanges nothing anyway, and a device records its iterations
        alone = alone.changed(sync="averaging", average_every=NEVER, loss_scale=1.0)
    if -(-config.run.batch // grain_of(config.model.batch_norm, graph, config.exchange.reproducible)) < ranks:
        alone = alone.changed(batch_norm=f"ghost:{config.run.batch // ranks}")
    return alone


def iteration_times(run: Assembly) -> list[float]:
    """Return the seconds of each iteration of a run, the mean of ranks. Kernels are compiled before. Collective."""
    with run.batches(run.transport, 0, run.iterations) as batches:
        first = next(batches)
        take_turns(run.transport, partial(rehearse, run, run.ops, first), compiles=run.ops.records)
        run.ops.synchronize()
        run.transport.barrier()
        ended = [time.perf_counter()]
        for batch in chain([first], batches):
            run.worker.iterate(batch, batches.peek)
            ended.append(time.perf_counter())
        run.worker.drain()
        ended[-1] = time.perf_counter()  # a device tells of a loss one iteration later
    seconds = [after - before for before, after in pairwise(ended)]
    return np.mean(run.transport.gather_json(seconds), axis=0).tolist()
