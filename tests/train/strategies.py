"""Runs under a strategy, for the tests that compare them."""

import numpy as np
from small_runs import BATCH_NORM_NET, DROPOUT_NET, run_of

from ringtrain.train.checkpoints.state import Progress, capture, place, restore

# A net of layers that see one example at a time, and one with ghost batch norm.
NETS = {"dropout": DROPOUT_NET, "ghost": BATCH_NORM_NET}
# Optimizers that need norms of whole parameters; of lars with a learning rate that moves.
LAYERWISE = {
    "lars": {"optimizer": "lars", "lr": 0.2, "trust": 0.05, "lr_policy": "inv"},
    "corrected lars": {
        "optimizer": "lars", "lr": 0.2, "trust": 0.05, "lr_policy": "inv", "momentum_correction": True,
    },
    "clipped lamb": {"optimizer": "lamb", "lr": 0.01, "clip_norm": 0.5, "trust_limit": 5.0},
}  # fmt: skip


def trained(transport, model_text, iterations, start=0, found=None, settle_at=(), ops=None, **flags):
    """Train from ``start``, there taking up ``found``, what :func:`saved` gave. Returns (losses, host weights, what
    :func:`saved` gives at the end)."""
    run, ops = run_of(transport, model_text, ops, iterations=iterations, **flags)
    if found is not None:
        restore(run, ops, transport, place(found), found if transport.rank == 0 else None)
    outcomes = []
    with run.batches(transport, start, iterations) as batches:
        for batch in batches:
            outcomes.append(run.worker.iterate(batch, batches.peek))
            if batch.iteration + 1 in settle_at:
                run.exchange.serving.drain_peers()
                outcomes += run.worker.drain()
                capture(run, ops, transport, Progress(iteration=batch.iteration + 1))
    run.exchange.serving.drain_peers()
    outcomes += run.worker.drain()
    losses = [outcome.loss_sum / outcome.valid for outcome in outcomes if outcome]
    checkpoint = capture(run, ops, transport, Progress(iteration=iterations))
    return losses, ops.to_host(run.arena.weights), checkpoint


def apart(found, expected):
    """How far the weights of all ranks are from the expected ones, by the largest of those."""
    return max(np.max(np.abs(weights - expected)) for _, weights, _ in found) / np.max(np.abs(expected))
