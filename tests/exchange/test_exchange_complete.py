"""Sums that are complete before the update, where another than the exchange changes them; state by another's names."""

import numpy as np
import pytest
from exchange_support import LR, backward, bound, each_equal, gradient

from ringtrain.errors import UsageError
from ringtrain.ops.update import APPLIED
from ringtrain.optim.catalogue import OPTIMIZERS
from ringtrain.optim.optimizers import SGD
from tests.fakes.strategies import AllReduce, Averaging, Delayed, Gossip, ParameterServer
from tests.loopback.world import LoopbackWorld

SIZE, STEPS = 3, 3
SUMMING = {
    "all-reduce": (AllReduce, {}),
    "all-reduce, late updates": (AllReduce, {"overlap": "forward"}),
    "server": (ParameterServer, {}),
    "servers, late updates": (ParameterServer, {"servers": 2, "overlap": "forward"}),
    "post-local": (Averaging, {"average_from": STEPS}),
}


def trained(make, halve, **options):
    """The weights of each rank by gradients of which half counts: halved when their sums are complete, or before."""

    def body(t):
        exchange, arena = bound(make, t, **options)
        for iteration in range(STEPS):
            exchange.before(iteration, 1, SIZE)
            for span in arena.spans:
                exchange.before_read(span)
            backward(exchange, arena, gradient(arena.spans, t.rank, iteration) * (1.0 if halve else 0.5))
            if halve:
                exchange.complete()
                exchange.complete()  # once is enough
                arena.grads *= 0.5
            exchange.finish(iteration, LR)
        exchange.synchronize()
        return arena.weights.copy()

    return LoopbackWorld(SIZE).run(body)


@pytest.mark.parametrize("name", SUMMING)
def test_a_change_of_complete_sums_counts_in_the_update(name):
    make, options = SUMMING[name]
    each_equal(trained(make, halve=True, **options), trained(make, halve=False, **options)[0])


def test_a_strategy_whose_update_is_not_by_these_sums_says_so():
    def body(t):
        exchange, _ = bound(Delayed, t)
        with pytest.raises(UsageError, match="delayed"):
            exchange.complete()

    LoopbackWorld(2).run(body)


class Growing(SGD):
    """An optimizer whose state has its names at the first update, as PyTorch's have."""

    def make_slots(self, zeros, pieces):
        self.state: dict = {}
        self.zeros = zeros
        return self.state

    def agree_on_slots(self, gather):
        for name in {name for names in gather(list(self.state)) for name in names}:
            self.state.setdefault(name, self.zeros())

    def apply(self, ops, weights, grads, slots, numbers, start, stop, first=0, squares=None, summed=False):
        if numbers[APPLIED]:  # not in a rehearsal
            self.state.setdefault("momentum", self.zeros())
            super().apply(ops, weights, grads, self.state, numbers, start, stop, first, squares, summed)


@pytest.mark.parametrize("make", [AllReduce, Delayed, Averaging, Gossip], ids=lambda make: make.__name__)
def test_state_that_comes_at_the_first_update_is_averaged_and_gathered(monkeypatch, make):
    """Also where a rank has made none: the last one has no examples before the first average."""

    def body(t):
        exchange, arena = bound(make, t, average_every=2)
        for iteration in range(4):
            exchange.before(iteration, int(iteration > 1 or t.rank < SIZE - 1), SIZE)
            backward(exchange, arena, gradient(arena.spans, t.rank, iteration))
            exchange.finish(iteration, LR)
        exchange.synchronize()
        return arena.weights.copy(), exchange.owned_state.state()["momentum"]

    usual = LoopbackWorld(SIZE).run(body)
    monkeypatch.setitem(OPTIMIZERS, "sgd", Growing)
    for (weights, momentum), (wanted, kept) in zip(LoopbackWorld(SIZE).run(body), usual, strict=True):
        np.testing.assert_array_equal(weights, wanted)
        np.testing.assert_array_equal(momentum, kept)
