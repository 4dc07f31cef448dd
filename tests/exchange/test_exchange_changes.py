"""Averaging whose changes of weights travel compressed, or in 16 bits, in place of the weights: what is sent."""

import numpy as np
import pytest
from exchange_support import HOST, TABLE, bound, iterate

from ringtrain.memory.arena import lay_out
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.strategies import Averaging
from tests.loopback.world import LoopbackWorld

SPARSE = {"compress": "top-k", "compress_ratio": 0.2}


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
