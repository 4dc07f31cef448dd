"""Averaging whose changes of weights travel compressed, or in 16 bits, in place of the weights: beside a simulation."""

from functools import partial

import numpy as np
import pytest
from exchange_support import HOST, HYPER, LR, TABLE, bound, gradient, iterate, over_arena, run

from ringtrain.memory.arena import lay_out
from ringtrain.ops.reference import ReferenceOps
from tests import lossy
from tests.fakes.strategies import Averaging
from tests.loopback.world import LoopbackWorld
from tests.says import says

SPARSE = {"compress": "top-k", "compress_ratio": 0.2}
SPARSELOCO = {**SPARSE, "compress_bits": 2, "compress_chunk": 16, "residual_decay": 0.95}
SENDS = {  # flags, what is sent of a matrix, and the factor of the rest
    "top-k": (SPARSE, partial(lossy.largest, ratio=0.2), 1),
    "SparseLoCo": (SPARSELOCO, partial(lossy.largest, ratio=0.2, chunk=16, bits=2), 0.95),
    "4 bits": ({"compress": "quantise", "compress_bits": 4}, partial(lossy.levels, bits=4), 1),
}


def simulated(size, every, momentum, rate, steps, send, decay, keep):
    """The weights of each rank: local SGD whose mean change is a Nesterov step; of matrices each rank sends a part, and
    keeps the rest for later."""
    spans = lay_out(TABLE)
    w = [over_arena(spans, lambda shape: np.arange(np.prod(shape)) / 16) for _ in range(size)]
    v, kept = ([np.zeros(spans[-1].stop) for _ in range(size)] for _ in range(2))
    begin, u = w[0].copy(), np.zeros(spans[-1].stop)
    for step in range(steps):
        for rank in range(size):
            g = gradient(spans, rank, step)
            for span in spans:
                part, p = slice(span.start, span.start + span.count), span.parameter
                if p.role == "statistic":
                    w[rank][part] += p.rate * (g[part] - w[rank][part])
                    continue
                v[rank][part] = HYPER.momentum * v[rank][part] + g[part] + HYPER.weight_decay * p.decay * w[rank][part]
                w[rank][part] -= LR * p.lr * v[rank][part]
        if (step + 1) % every:
            continue
        total = np.zeros(spans[-1].stop)
        for rank in range(size):
            change = (begin - w[rank]) * (1 / size)
            for span in spans:
                if span.parameter.role == "weight":
                    part = slice(span.start, span.start + span.count)
                    kept[rank][part] = decay * kept[rank][part] + change[part]
                    change[part] = send(kept[rank][part])
                    kept[rank][part] -= change[part]
            total += change
        u = momentum * u + total
        mean, begin = begin - total, begin - rate * (total + momentum * u)
        for span in spans:
            if span.parameter.role == "statistic":
                begin[span.start : span.stop] = mean[span.start : span.stop]
        w = [begin.copy() for _ in range(size)]
        v = v if keep else [sum(each * (1 / size) for each in v) for _ in range(size)]
    return w


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    ("name", "outer", "momentum"),
    [
        ("top-k", (0.9, 0.7), "keep"),
        ("top-k", (0.0, 1.0), "average"),
        ("SparseLoCo", (0.0, 0.7), "keep"),
        ("4 bits", (0.9, 0.7), "keep"),
    ],
)
def test_lossy_changes_are_those_of_a_simulation(size, name, outer, momentum):
    (lossy_flags, *how), keep = SENDS[name], momentum == "keep"
    flags = {"every": 5, "momentum": momentum, "algorithm": "star", "bucket_bytes": 300, **lossy_flags}
    ranks = run(Averaging, size, 50, outer=outer, **flags)
    for (weights, *_), wanted in zip(ranks, simulated(size, 5, *outer, 50, *how, keep), strict=True):
        np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)
    assert any(note == says("of whole arrays", "exchange") for note in ranks[0][2].facts.notes)


def after(t, iterations, ops=None, **flags):
    exchange, arena = bound(Averaging, t, ops=ops, every=5, outer=(0.9, 0.7), **flags)
    for iteration in range(iterations):
        iterate(exchange, arena, t.rank, iteration, 1, t.size, ops=ops or HOST)
    return exchange, arena.weights.copy()


def test_changes_are_sent_once_a_period_by_their_formula():
    """Of matrices of 35, 70 and 2 elements 7, 14 and 1, each with its index, to each other rank; the rest whole."""
    flags = {"momentum": "keep", "algorithm": "sliced", "bucket_bytes": 1 << 20, **SPARSE}
    exchange, _ = LoopbackWorld(3).run(lambda t: after(t, 12, **flags))[0]
    pairs, rest = 2 * (7 + 14 + 1) * (8 + 4), 2 * 8 * elements_of("bias", "statistic") * 2 // 3
    sent = {name: reducer.bytes_sent for name, reducer in exchange.reducers.training.items()}
    assert sent == {"weights": 0, "changes": pytest.approx(2 * (pairs + rest), rel=0.1)}


def test_a_mean_that_an_evaluation_sees_is_no_bytes_of_training():
    def body(t):
        exchange, _ = after(t, 7, momentum="keep", algorithm="sliced")
        before = exchange.reducers.bytes_sent
        exchange.synchronize()
        assert exchange.distance > 0 and exchange.owned_state.state()
        return before, exchange.reducers.bytes_sent

    for before, later in LoopbackWorld(3).run(body):
        assert before == later > 0


def elements_of(*roles):
    return sum(span.stop - span.start for span in lay_out(TABLE) if span.parameter.role in roles)


def test_changes_in_16_bits_are_near_whole_ones():
    def body(t, wire):
        return after(t, 20, ReferenceOps("float32"), momentum="keep", algorithm="sliced", wire=wire)[1]

    whole, rounded = (LoopbackWorld(2).run(lambda t, wire=wire: body(t, wire)) for wire in ("none", "float16"))
    np.testing.assert_array_equal(rounded[0], rounded[1])
    assert 0 < np.linalg.norm(rounded[0] - whole[0]) < 1e-3 * np.linalg.norm(whole[0])


@pytest.mark.parametrize(("stop", "lossy_flags"), [
    (7, SPARSE), (10, SPARSE), (7, SPARSELOCO), (10, {"compress": "sign", "error_feedback": "ef21"}),
])  # fmt: skip
def test_a_run_goes_on_as_if_unbroken(stop, lossy_flags):
    """In mid-period, and at the end of one, where ranks differ in their residuals or estimates alone."""
    flags = {"every": 5, "momentum": "keep", "algorithm": "star", "outer": (0.9, 0.7), **lossy_flags}

    def body(t, saved=None):
        exchange, arena = bound(Averaging, t, **flags)
        if saved:
            arena.weights[...] = saved[0]
            exchange.owned_state.restore(saved[1])
            exchange.owned_state.rank_state.take(saved[2])
        for iteration in range(stop, 20) if saved else range(stop):
            iterate(exchange, arena, t.rank, iteration, 1, 3)
        exchange.synchronize()
        state = exchange.owned_state.state()
        of_rank = exchange.owned_state.rank_state
        assert of_rank.differs
        return arena.weights.copy(), state, {name: array.copy() for name, array in of_rank.arrays().items()}

    saved = LoopbackWorld(3).run(body)
    ends = LoopbackWorld(3).run(lambda t: body(t, (saved[0][0], saved[0][1], saved[t.rank][2])))
    for (weights, *_), (wanted, *_) in zip(ends, run(Averaging, 3, 20, **flags), strict=True):
        np.testing.assert_array_equal(weights, wanted)
