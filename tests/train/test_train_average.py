"""``--ema``: the average of the weights, under every strategy that has it, and the weights of evaluations."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, begun, everywhere, iterate, run_of, same_weights

from ringtrain.train.checkpoints.state import Progress, averaged_weights, by_name, capture
from ringtrain.train.load import load, score_of
from ringtrain.transport.loopback import Loopback
from ringtrain.weights.matching import weights_for_use
from tests.runs import records, start

DECAY, ITERATIONS = 0.8, 6
OPTIMIZER = {"optimizer": "rmsprop", "lr": 0.002, "eps": 1e-3, "clip_norm": 5.0, "dtype": "float64", "ema": DECAY}
WORLDS = {
    "allreduce": (3, {}),
    "allreduce, overlap forward": (2, {"overlap": "forward", "bucket_bytes": 500}),
    "sharded": (3, {"sync": "sharded"}),
    "server": (3, {"sync": "server", "servers": 2}),
    "dedicated server": (3, {"sync": "server", "dedicated": True}),
    "master": (2, {"sync": "master"}),
    "hybrid": (3, {"fc": "hybrid"}),
    "pipeline": (3, {"fc": "pipeline"}),
    "lamb sharded": (3, {"sync": "sharded", "optimizer": "lamb", "clip_norm": None}),
}


def averages(transport, stop, first=0, checkpoint=None, **flags):
    """(the weights after each update, those that evaluations have, the checkpoint) of iterations up to ``stop``."""
    run, _ = begun(transport, BATCH_NORM_NET, None, checkpoint, **{"iterations": stop, **OPTIMIZER, **flags})
    updated = []

    def update(batch):
        run.exchange.serving.drain_peers()
        run.exchange.synchronize()
        updated.append(run.arena.weights.copy())

    iterate(run, transport, first, stop, update)
    before = run.arena.weights.copy()
    with averaged_weights(run):
        evaluated = run.arena.weights.copy()
    assert run.arena.weights.tobytes() == before.tobytes()
    return updated, evaluated, capture(run, Progress(iteration=stop))


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
    assert same_weights(ranks if name != "pipeline" else ranks[:1])
    kept, averaged = weights_for_use(checkpoint)
    raw, not_averaged = weights_for_use(checkpoint, raw=True)
    assert averaged and not not_averaged
    run = everywhere(1, lambda t: run_of(t, BATCH_NORM_NET, dtype="float64")[0])[0]
    for arrays, flat in ((kept, evaluated), (raw, updated[-1])):
        for name, array in by_name(run.arena, flat).items():
            assert arrays[name].tobytes() == array.tobytes()


def test_a_run_goes_on_with_it_under_another_strategy_at_another_number_of_ranks():
    whole = averages(Loopback(), ITERATIONS)[1]
    second = everywhere(3, lambda t: averages(t, 2, sync="sharded"))[0][2]
    fourth = everywhere(2, lambda t: averages(t, 4, 2, second, sync="server"))[0][2]
    for _, evaluated, _ in everywhere(4, lambda t: averages(t, ITERATIONS, 4, fourth)):
        np.testing.assert_allclose(evaluated, whole, rtol=1e-9, atol=1e-12)


def test_there_is_none_before_the_first_update():
    _, evaluated, checkpoint = averages(Loopback(), 1, sync="delayed", clip_norm=None)
    assert weights_for_use(checkpoint)[1] is False
    assert evaluated.tobytes() == run_of(Loopback(), BATCH_NORM_NET, dtype="float64")[0].arena.weights.tobytes()


def test_evaluations_have_it_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = Loopback()
    start(alone, None, {"epochs": 1, "ema": 0.9, "out": "run"})
    last = records(tmp_path / "run")[-1]
    scores = {raw: score_of(alone, load(alone, "run", False, {}, "test", raw)) for raw in (False, True)}
    assert scores[False].loss == last["test_loss"]
    assert scores[True].loss != last["test_loss"]
    assert load(alone, "run", False, {}, "test").averaged
