"""Strategies on a small arena, and iterations with gradients of small whole numbers, others on each rank: in any order
their sums are the same."""

import numpy as np

from ringtrain.config.record import OptimizerConfig
from ringtrain.config.resolve import resolve
from ringtrain.exchange.compatibility import check_options
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import settings_of
from tests.loopback.world import LoopbackWorld

ZERO = Fill("constant")
TABLE = (
    ("a.weight", Parameter("weight", (5, 7), ZERO)),
    ("a.bias", Parameter("bias", (7,), ZERO, role="bias", lr=2.0, decay=0.0)),
    ("n.mean", Parameter("mean", (7,), ZERO, role="statistic", rate=0.25)),
    ("b.weight", Parameter("weight", (70,), ZERO)),
    ("c.weight", Parameter("weight", (2,), ZERO)),
)
LR = 0.125
HYPER = OptimizerConfig(momentum=0.5, weight_decay=0.25)
HOST = ReferenceOps("float64")


def over_arena(spans, draw):
    """A flat array, zero in the padding. ``draw``: shape of a parameter → its elements"""
    flat = np.zeros(spans[-1].stop)
    for span in spans:
        flat[span.start : span.start + span.count] = np.ravel(draw(span.shape))
    return flat


def counted_through(spans):
    """The weights that :func:`bound` begins with."""
    return over_arena(spans, lambda shape: np.arange(np.prod(shape)) / 16)


def local_step(spans, w, v, g, lr=LR):
    """Step one rank's weights along their momentum, in place; running statistics move towards ``g``. Flat arrays."""
    for span in spans:
        part, p = slice(span.start, span.start + span.count), span.parameter
        if p.role == "statistic":
            w[part] += p.rate * (g[part] - w[part])
            continue
        v[part] = HYPER.momentum * v[part] + g[part] + HYPER.weight_decay * p.decay * w[part]
        w[part] -= lr * p.lr * v[part]


def gradient(spans, rank, iteration):
    rng = np.random.default_rng([rank, iteration])
    return over_arena(spans, lambda shape: rng.integers(-8, 9, shape))


def kit_of(size=1, **flags):
    """The settings of a run with these flags, on rank 0."""
    check_options(resolve(("flags", flags)))
    return settings_of(LoopbackWorld(size).transport(0) if size > 1 else Loopback(), ReferenceOps(), **flags)


def bound(make, transport, optimizer="sgd", ops=None, **options):
    """A strategy on an arena whose weights are counted through."""
    ops = ops or ReferenceOps("float64")
    arena = Arena(transport.scratch, TABLE, ops.dtype.name, exchanged=transport.allocate)
    ops.upload(counted_through(arena.spans).astype(ops.dtype), arena.weights)
    exchange = make(transport, ops, **{"deadline_s": 20.0, **options})
    exchange.bind(arena, make_optimizer(optimizer, arena.spans, HYPER))
    exchange.rehearse()
    return exchange, arena


def forward(exchange, arena, asks=True):
    """What a forward pass reads: a copy of each span's weights, when it is read."""
    read = []
    for span in arena.spans:
        if asks:
            exchange.before_read(span)
        read.append(arena.weight(span).copy().reshape(-1))
    return np.concatenate(read)


def backward(exchange, arena, grads, order=None, ops=HOST):
    """Announce gradients as they become final: the last layer's first, or in this order."""
    for span in reversed(arena.spans) if order is None else order:
        ops.upload(grads[span.start : span.stop].astype(ops.dtype), arena.grads[span.start : span.stop])
        exchange.grad_ready(span)


def iterate(
    exchange, arena, rank, iteration, examples=1, total=1, order=None, reads=False, grads=None, ops=HOST, lr=LR
):
    """An iteration with the rank's gradient, or with ``grads``; without examples nothing is read, and it is zero."""
    exchange.before(iteration, examples, total)
    if reads and examples:
        forward(exchange, arena)
    grads = (gradient(arena.spans, rank, iteration) if grads is None else grads) * bool(examples)
    if order is not None and not order:
        ops.upload(grads.astype(ops.dtype), arena.grads)
    backward(exchange, arena, grads, order, ops)
    exchange.finish(iteration, lr)


def run(make, size, iterations=4, nodes=1, wrap=lambda t: t, announce=True, reads=False, **options):
    """(weights, state, exchange) of each rank."""

    def body(t):
        exchange, arena = bound(make, wrap(t), **options)
        trains = int(t.rank in exchange.facts.roles.trainers)
        for iteration in range(iterations):
            iterate(exchange, arena, t.rank, iteration, trains, size, None if announce else (), reads)
        exchange.synchronize()
        weights = arena.weights.copy()
        return weights, exchange.owned_state.state(), exchange

    return LoopbackWorld(size, nodes).run(body)


def goes_on_as_if_unbroken(make, size, stop, steps, examples=lambda rank: 1, total=None, **flags):
    """Assert that ranks which go on from a state after ``stop`` iterations, as a checkpoint has it, have the bits of
    those that never stopped: their own weights, the mean, and what each keeps."""

    def body(t, first, last, saved=None):
        exchange, arena = bound(make, t, **flags)
        kept = exchange.owned_state
        if saved:
            arena.weights[...] = saved[0][1]
            kept.restore(saved[0][2])
            before = kept.rank_state.arrays()
            assert {name: (each.shape, each.dtype) for name, each in saved[t.rank][3].items()} == {
                name: (before[name].shape, before[name].dtype) for name in saved[t.rank][3]
            }
            kept.rank_state.take(saved[t.rank][3])
        for iteration in range(first, last):
            iterate(exchange, arena, t.rank, iteration, examples(t.rank), total or size)
        weights = arena.weights.copy()
        exchange.synchronize()
        assert kept.rank_state.differs
        arrays = {name: array.copy() for name, array in kept.rank_state.arrays().items()}
        return weights, arena.weights.copy(), kept.state(), arrays

    whole, saved = (LoopbackWorld(size).run(lambda t, last=last: body(t, 0, last)) for last in (steps, stop))
    ends = LoopbackWorld(size).run(lambda t: body(t, stop, steps, saved))
    for (weights, mean, _, arrays), (wanted, wanted_mean, _, wanted_arrays) in zip(ends, whole, strict=True):
        np.testing.assert_array_equal(weights, wanted)
        np.testing.assert_array_equal(mean, wanted_mean)
        for name, array in wanted_arrays.items():
            np.testing.assert_array_equal(arrays[name], array)


def each_equal(results, wanted, close=0):
    """Assert that the weights of all ranks are equal, or close."""
    for weights in results:
        np.testing.assert_allclose(weights, wanted, rtol=close, atol=close)


def all_alike(ranks, want, kept=None, step=4):
    """Assert that what :func:`run` returned has these weights on each rank, and this state."""
    for weights, state, _ in ranks:
        np.testing.assert_array_equal(weights, want)
        for name in (kept or {}).keys() - {"step"}:
            np.testing.assert_array_equal(state[name], kept[name])
        assert kept is None or state["step"] == step


def seen_aside(exchange, arena, *following):
    """Look at the mean of ranks, which is made once and aside, and go on with an iteration: this rank's weights and
    momentum, the mean of the weights, the state."""
    before, slot = arena.weights.copy(), exchange._update.slots["momentum"].copy()
    exchange.synchronize()
    sent, mean = exchange.reducers.traffic().bytes_sent, arena.weights.copy()
    exchange.synchronize()
    assert exchange.reducers.traffic().bytes_sent == sent
    state = exchange.owned_state.state()
    np.testing.assert_array_equal(arena.weights, mean)
    exchange.before(*following)
    np.testing.assert_array_equal(arena.weights, before)
    np.testing.assert_array_equal(exchange._update.slots["momentum"], slot)
    return before, slot, mean, state
