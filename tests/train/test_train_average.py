"""``--ema``: the average of the weights, under every strategy that has it, and the weights of evaluations."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, everywhere, run_of

from ringtrain.ops.catalogue import make_ops
from ringtrain.train.checkpoints.state import (
    Progress,
    averaged_weights,
    by_name,
    capture,
    common_facts,
    restore,
)
from ringtrain.train.load import load, score_of
from ringtrain.train.start.start import start
from ringtrain.transport.loopback import Loopback
from ringtrain.weights.averaged import weights_for_use
from tests.runs import records

DECAY, ITERATIONS = 0.8, 6
OPTIMIZER = {"optimizer": "rmsprop", "lr": 0.002, "eps": 1e-3, "clip_norm": 5.0, "dtype": "float64", "ema": DECAY}
HYBRID = {"fc": "hybrid"}
WORLDS = {
    "allreduce": (3, {}),
    "allreduce, overlap forward": (2, {"overlap": "forward", "bucket_bytes": 500}),
    "sharded": (3, {"sync": "sharded"}),
    "server": (3, {"sync": "server", "servers": 2}),
    "dedicated server": (3, {"sync": "server", "dedicated": True}),
    "master": (2, {"sync": "master"}),
    "hybrid": (3, HYBRID),
    "hybrid sharded": (2, {**HYBRID, "sync": "sharded"}),
    "pipeline": (3, {"fc": "pipeline"}),
    "lamb sharded": (3, {"sync": "sharded", "optimizer": "lamb", "clip_norm": None}),
}


def averages(transport, stop, first=0, found=None, **flags):
    """(the weights after each update, those that evaluations have, the checkpoint) of iterations up to ``stop``."""
    ops = make_ops("reference", "float64")
    run, _ = run_of(transport, BATCH_NORM_NET, ops, **{"iterations": stop, **OPTIMIZER, **flags})
    if found is not None:
        restore(run, ops, transport, common_facts(found), found if transport.rank == 0 else None)
    updated = []
    with run.batches(transport, first, stop) as batches:
        for batch in batches:
            run.worker.iterate(batch, batches.peek)
            run.exchange.serving.drain_peers()
            run.exchange.synchronize()
            updated.append(run.arena.weights.copy())
    before = run.arena.weights.copy()
    with averaged_weights(run):
        evaluated = run.arena.weights.copy()
    assert run.arena.weights.tobytes() == before.tobytes()
    return updated, evaluated, capture(run, ops, transport, Progress(iteration=stop))


@pytest.mark.parametrize("name", WORLDS)
def test_it_is_the_average_of_the_weights_after_each_update(name):
    size, flags = WORLDS[name]
    ranks = everywhere(size, lambda t: averages(t, ITERATIONS, **flags))
    updated, evaluated, checkpoint = ranks[0]
    average = updated[0]
    for weights in updated[1:]:
        average = DECAY * average + (1 - DECAY) * weights
    np.testing.assert_allclose(evaluated, average, rtol=1e-12, atol=1e-15)
    assert np.abs(evaluated - updated[-1]).max() > 1e-4
    for _, own, _ in ranks if name != "pipeline" else ranks[:1]:
        assert own.tobytes() == evaluated.tobytes()
    kept, averaged = weights_for_use(checkpoint)
    raw, not_averaged = weights_for_use(checkpoint, raw=True)
    assert averaged and not not_averaged
    run = everywhere(1, lambda t: run_of(t, BATCH_NORM_NET, dtype="float64")[0])[0]
    for name, array in by_name(run.arena, evaluated).items():
        assert kept[name].tobytes() == array.tobytes()
    for name, array in by_name(run.arena, updated[-1]).items():
        assert raw[name].tobytes() == array.tobytes()


def test_a_run_goes_on_with_it_under_another_strategy_at_another_number_of_ranks():
    whole = averages(Loopback(), ITERATIONS)[1]
    found = everywhere(3, lambda t: averages(t, 2, sync="sharded"))[0][2]
    found = everywhere(2, lambda t: averages(t, 4, 2, found, sync="server"))[0][2]
    for _, evaluated, _ in everywhere(4, lambda t: averages(t, ITERATIONS, 4, found)):
        np.testing.assert_allclose(evaluated, whole, rtol=1e-9, atol=1e-12)


def test_there_is_none_before_the_first_update():
    _, evaluated, checkpoint = averages(Loopback(), 1, sync="delayed", clip_norm=None)
    assert weights_for_use(checkpoint)[1] is False
    assert evaluated.tobytes() == make_first().tobytes()


def make_first():
    return run_of(Loopback(), BATCH_NORM_NET, dtype="float64")[0].arena.weights


def test_evaluations_have_it_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = Loopback()
    start(alone, None, {"epochs": 1, "ema": 0.9, "out": "run"})
    last = records(tmp_path / "run")[-1]
    scores = {raw: score_of(alone, load(alone, "run", False, {}, "test", raw)) for raw in (False, True)}
    assert scores[False].loss == last["test_loss"]
    assert scores[True].loss != last["test_loss"]
    assert load(alone, "run", False, {}, "test").averaged
