"""Training with fully connected layers divided among ranks is training with all of them everywhere."""

from functools import cache

import numpy as np
import pytest
from small_runs import DROPOUT_NET, ITERATIONS, everywhere, run_of
from strategies import apart, trained

from ringtrain.errors import ConfigError, DivergedError
from ringtrain.exchange import texts as exchange_texts
from ringtrain.train import texts as train_texts
from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport

FLAT = '[[layers]]\nname = "flat"\nkind = "Flatten"\n'
# Two fully connected layers behind the convolution, of columns that no number of ranks divides, and all that may stand
# between: a bias that learns twice as fast, a ReLU that is folded and one that is not, dropout.
BETWEEN = """[[layers]]
name = "fc1"
kind = "Linear"
units = 21
bias = { value = 0.1, lr = 2, decay = 0 }
[[layers]]
name = "relu2"
kind = "ReLU"
[[layers]]
name = "drop1"
kind = "Dropout"
rate = 0.4
[[layers]]
name = "relu3"
kind = "ReLU"
"""
TWO = DROPOUT_NET.replace(FLAT, FLAT + BETWEEN)
GHOST = TWO.replace('kind = "LRN"\nsize = 3\nalpha = 0.001\nbeta = 0.75', 'kind = "BatchNorm"\nghost = 8')
# Nothing but fully connected layers: the inner exchange has nothing to do.
FULL = TWO[: TWO.index("[[layers]]")] + TWO[TWO.index(FLAT) :]
NETS = {"two": TWO, "ghost": GHOST, "full": FULL, "one": DROPOUT_NET}


def hybrid(size, net=TWO, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", fc="hybrid", **flags))


@cache
def serial(net=TWO, iterations=ITERATIONS, **flags):
    return everywhere(1, lambda t: trained(t, net, iterations, dtype="float64", **flags))[0]


def check(found, losses, weights):
    assert apart(found, weights) <= 1e-12
    for other, mine, _ in found:
        np.testing.assert_allclose(other, losses, rtol=1e-12)
        np.testing.assert_array_equal(mine, found[0][1])


@pytest.mark.parametrize(
    ("net", "size"), [("two", 1), ("two", 2), ("two", 3), ("two", 4), ("ghost", 3), ("full", 3), ("one", 2)]
)
def test_weights_and_losses_are_those_of_one_rank(net, size):
    """Tails of 27 are among the batches of 30."""
    losses, weights, _ = serial(NETS[net])
    check(hybrid(size, NETS[net]), losses, weights)


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.01},
        {"optimizer": "nesterov", "clip_norm": 0.5},
        {"optimizer": "lars", "trust": 0.1, "clip_norm": 0.5},
        {"optimizer": "lamb", "lr": 0.01},
        {"accumulate": 3},
        {"label_smoothing": 0.1, "decay_bias_norm": False},
    ],
)
def test_optimizers_clipping_and_micro_batches(flags):
    losses, weights, _ = serial(iterations=20, **flags)
    check(hybrid(3, iterations=20, **flags), losses, weights)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"clip_norm": 0.1, "optimizer": "adamw", "lr": 0.002},
        {"clip_norm": 0.1, "optimizer": "lars", "trust": 0.1, "lr_policy": "inv", "momentum_correction": True},
    ],
)
def test_around_slices(flags):
    losses, weights, _ = serial(iterations=20, **flags)
    check(hybrid(3, iterations=20, sync="sharded", bucket_bytes=500, **flags), losses, weights)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_without_examples_compute_their_columns(accumulate):
    """297 examples are 4 batches of 74 and a tail of one example, which is one rank's."""
    flags = {"batch": 74, "accumulate": accumulate}
    losses, weights, _ = serial(iterations=6, batch=74)
    check(hybrid(4, iterations=6, **flags), losses, weights)


def test_it_goes_on_at_another_number_of_ranks_and_without():
    flags = {"optimizer": "adamw", "lr": 0.002}
    _, weights, last = serial(**flags)
    begun = hybrid(3, iterations=8, **flags)[0][2]
    middle = hybrid(2, iterations=15, start=8, found=begun, **flags)[0][2]
    data = everywhere(2, lambda t: trained(t, TWO, ITERATIONS, 15, middle, dtype="float64", **flags))
    assert apart(data, weights) <= 1e-12
    again = hybrid(4, iterations=ITERATIONS, start=8, found=serial(iterations=8, **flags)[2], **flags)
    assert apart(again, weights) <= 1e-12
    checkpoint = again[0][2]
    assert checkpoint.optimizer.keys() == last.optimizer.keys() and checkpoint.scalars["step"] == last.scalars["step"]
    for slot, arrays in last.optimizer.items():
        for name, array in arrays.items():
            np.testing.assert_allclose(checkpoint.optimizer[slot][name], array, rtol=1e-9, atol=1e-15)


def test_looking_changes_nothing():
    seen = hybrid(3, iterations=20, settle_at=(1, 7, 8))
    unseen = hybrid(3, iterations=20)
    assert [weights.tobytes() for _, weights, _ in seen] == [weights.tobytes() for _, weights, _ in unseen]


def test_evaluation_sees_the_columns_of_all_ranks():
    def body(transport, **flags):
        run, _ = run_of(transport, TWO, iterations=10, **flags)
        with run.batches(transport, 0, 10) as batches:
            for batch in batches:
                run.worker.iterate(batch)
        run.exchange.synchronize()
        return run.evaluator.score(run.data.test, 100)

    (want,) = everywhere(1, body)
    for score in everywhere(3, lambda t: body(t, fc="hybrid")):
        assert (score.examples, score.accuracy) == (want.examples, want.accuracy)
        assert score.loss == pytest.approx(want.loss, rel=1e-5)


def test_a_rehearsal_is_of_one_rank_at_a_time_and_changes_nothing():
    def body(transport):
        run, ops = run_of(transport, TWO, iterations=5, fc="hybrid", accumulate=2)
        before = ops.to_host(run.arena.weights)
        with run.batches(transport, 0, 1) as batches:
            batch = next(batches)
            for turn in range(3):
                if turn == transport.rank:
                    run.worker.rehearse(batch)
                transport.barrier()
        run.exchange.synchronize()
        np.testing.assert_array_equal(ops.to_host(run.arena.weights), before)
        assert run.exchange.reducers.traffic().bytes_sent == 0

    everywhere(3, body)


def test_a_loss_that_is_not_finite_is_explained():
    def body(transport):
        run, ops = run_of(transport, TWO, iterations=2, fc="hybrid", accumulate=2)
        span = next(span for span in run.arena.spans if span.name == "fc1.bias")
        ops.upload(np.full(span.shape, np.nan, ops.dtype), run.arena.weight(span))
        with (
            run.batches(transport, 0, 1) as batches,
            pytest.raises(DivergedError, match=train_texts.FIRST_LAYER.pattern(layer="fc1")),
        ):
            run.worker.iterate(next(batches))

    everywhere(3, body)


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5, "sync": "sharded"}, {"optimizer": "lars", "accumulate": 2}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, GHOST, 6, ops=ops, fc="hybrid", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [2, 4])
def test_what_is_sent_is_the_formula(size):
    """Features of 96, columns 24 and 12, batch 32: every rank has as much. What else is sent is sums of the rest, and
    the index of each example."""
    net = TWO.replace("units = 21", "units = 24").replace("units = 10", "units = 12")

    def sent(transport, **flags):
        run, _ = run_of(transport, net, batch=32, synthetic=True, data=None, augment=False, **flags)
        with run.batches(transport, 0, 3) as batches:
            for batch in batches:
                run.worker.iterate(batch)
        before = run.exchange.reducers.traffic().bytes_sent
        run.exchange.synchronize()
        assert run.exchange.reducers.traffic().bytes_sent == before
        return before, sum(span.stop - span.start for span in run.arena.spans if span.name[:2] == "fc"), run

    for data, divided in zip(
        everywhere(size, lambda t: sent(t, algorithm="sliced")),
        everywhere(size, lambda t: sent(t, algorithm="sliced", fc="hybrid")),
        strict=True,
    ):
        rest = data[0] - 3 * 4 * 2 * (size - 1) / size * data[1]
        columns = (size - 1) / size * 32 * (4 * (2 * 96 + 2 * 24 + 2 * 12 / size) + 8)
        assert divided[0] == pytest.approx(3 * columns + rest, rel=1e-3)


def test_the_header_says_what_it_saves():
    (run, *_) = everywhere(2, lambda t: run_of(t, TWO, fc="hybrid")[0])
    exchange = run.exchange
    assert (exchange.facts.name, exchange.facts.header, exchange.facts.exact) == (
        "allreduce",
        exchange_texts.WITH_HYBRID,
        True,
    )
    assert exchange.facts.notes[0] == (
        "hybrid: columns of fc1, fc are divided among 2 ranks: a rank sends 3,660 numbers for them in an iteration, "
        "with --fc data 2,257: at this batch --fc data sends less"
    )
    (run, *_) = everywhere(3, lambda t: run_of(t, TWO, fc="hybrid", batch=6)[0])
    assert run.exchange.facts.notes[0].endswith(
        "sends 963 numbers for them in an iteration, with --fc data 3,009: 68% less"
    )
    (run,) = everywhere(1, lambda t: run_of(t, TWO, fc="hybrid")[0])
    assert run.exchange.facts.notes[0].endswith("among 1 ranks: one rank has all columns, and sends nothing")


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
CONVOLUTIONAL = DROPOUT_NET.replace(
    FLAT + '[[layers]]\nname = "fc"\nkind = "Linear"\nunits = 10\n',
    '[[layers]]\nname = "conv2"\nkind = "Conv2D"\nchannels = 10\nkernel = 1\n'
    '[[layers]]\nname = "mean"\nkind = "GlobalAvgPool"\n',
)


@pytest.mark.parametrize(
    ("net", "size", "flags", "message"),
    [
        (CONVOLUTIONAL, 1, {}, "layers at the end of a model, and 'small' has none there: leave --fc at data"),
        (DROPOUT_NET, 11, {}, "'fc' has 10, fewer than the 11 ranks: use at most 10, or leave --fc at data"),
    ],
)
def test_what_cannot_be_divided(net, size, flags, message):
    def body(transport):
        with pytest.raises(ConfigError, match=message):
            run_of(transport, net, fc="hybrid", **flags)

    everywhere(size, body)
