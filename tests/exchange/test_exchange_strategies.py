"""The strategies on gradients of small whole numbers: each against its formula, who owns what, what is refused."""

import math

import numpy as np
import pytest
from exchange_support import HOST, LR, TABLE, all_alike, bound, each_equal, iterate, kit_of, run, seen_aside

from ringtrain.collectives.catalogue import HALVES
from ringtrain.config.record import OptimizerConfig, config_fields
from ringtrain.errors import CheckpointError, StalledError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.catalogue import STRATEGIES, make_exchange
from ringtrain.exchange.compression.error_feedback import METHODS
from ringtrain.exchange.update.example_share import ExampleShare
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.exchange.update.ranges import common, cut, elements, join
from ringtrain.memory.arena import Arena
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import (
    AllReduce,
    Averaging,
    Delayed,
    Gossip,
    Master,
    ParameterServer,
    Sharded,
    StaleParameterServer,
)
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid


class NotingOps(ReferenceOps):
    """Operations that note the names of those that an exchange uses."""

    UPDATES = ("begin_update", "gradient_squares", "update", "update_squares")
    NOTED = ("add", "add_all", "copy", "fill", "scale", *UPDATES)

    def __init__(self):
        super().__init__("float64")
        self.used, self._plain = set(), ReferenceOps("float64")

    def __getattribute__(self, name):
        if name in NotingOps.NOTED:
            self.used.add(name)
        # What an update is made of on a host is no operation of the exchange.
        return super().__getattribute__(name) if name not in NotingOps.UPDATES else getattr(self._plain, name)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        *(AllReduce, Averaging, Delayed, Gossip, Master, ParameterServer, Sharded),
        lambda *args, **options: StaleParameterServer("server", *args, **options),
    ],
)
def test_a_rehearsal_runs_every_operation_of_iterations_averages_and_states(make, clip_norm):
    def body(t):
        ops = NotingOps()
        exchange, arena = bound(make, t, ops=ops, clip_norm=clip_norm)
        rehearsed, ops.used = ops.used, set()
        for iteration in range(8):
            iterate(exchange, arena, t.rank, iteration, 1, t.size)
        exchange.synchronize()
        exchange.owned_state.state()
        assert ops.used <= rehearsed
        return ops.used

    assert any(LoopbackWorld(2).run(body))


def test_gradients_are_clipped_with_others_that_the_exchange_does_not_sum():
    """Three quarters of the sum of squares are of others: the norm is twice the arena's. Every rank asks once, with
    the same sum."""
    size, squares_of_ranks = 3, []

    def add_external(squares):
        squares_of_ranks.append(squares)
        return 4 * squares

    def make(*arguments, **options):
        exchange = AllReduce(*arguments, **options)
        exchange._add_square_norm = add_external
        return exchange

    def body(t):
        exchange, arena = bound(make, t, clip_norm=5.0)
        arena.weights[...] = 0
        exchange.before(0, 1, size)
        for span in arena.spans:
            arena.grad(span)[...] = t.rank + 1
        exchange.finish(0, 1.0)
        exchange.synchronize()
        return arena.weight(arena.spans[0])[0, 0]

    trained = sum(math.prod(parameter.shape) for _, parameter in TABLE if parameter.role != "statistic")
    norm = 2 * 6 * math.sqrt(trained)
    np.testing.assert_allclose(LoopbackWorld(size).run(body), [-6 * 5 / norm] * size, rtol=1e-12)
    assert squares_of_ranks == [36 * trained] * size


# ── sharded ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("size", "algorithm"),
    grid(lambda size, algorithm: size == 3 or algorithm == "ring", [1, 2, 3, 5], ["auto", *HALVES]),
)
def test_sharded_by_every_schedule_of_halves_is_all_reduce(algorithm, size):
    (want, kept, _), *_ = run(AllReduce, size, bucket_bytes=600)
    for options in ({"bucket_bytes": 1}, {"bucket_bytes": 600, "segment_bytes": 64}):
        all_alike(run(Sharded, size, nodes=min(size, 2), algorithm=algorithm, **options), want, kept)


@pytest.mark.parametrize(
    ("make", "options"),
    [(Sharded, {}), *((ParameterServer, {"servers": 2, "overlap": each}) for each in ("none", "backward", "forward"))],
)
def test_messages_that_end_late_and_gradients_that_nobody_announces(make, options):
    (want, *_), *_ = run(AllReduce, 4)
    late = {"wrap": lambda t: delaying(t, seed=5), "announce": False, "segment_bytes": 64, "reads": True}
    all_alike(run(make, 4, **late, **options), want)


def test_a_rank_keeps_its_part_of_the_state_and_says_how_much():
    count = run(Sharded, 1)[0][1]["momentum"].size
    for size, algorithm in ((3, "sliced"), (4, "ring"), (5, "circulant")):
        ranks = run(Sharded, size, optimizer="adamw", algorithm=algorithm, bucket_bytes=1 << 20)
        sizes = [exchange._update.slots["square"].size for *_, exchange in ranks]
        assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    (note,) = run(Sharded, 4, optimizer="adamw", algorithm="ring", bucket_bytes=1 << 20)[0][2].facts.notes
    assert note == says("ring", f"{16 * count // 4} B", "2.75 KiB")
    (note,) = run(Sharded, 2, algorithm="star")[0][2].facts.notes
    assert note == says("star", "0 B", "1.375 KiB")


def test_sharded_sends_what_an_all_reduce_sends():
    """Per rank 2·(p-1)/p of the buffer; a state that is gathered is no part of training."""
    ranks = run(Sharded, 4, iterations=2, algorithm="ring", bucket_bytes=1 << 20)
    nbytes = 8 * ranks[0][1]["momentum"].size
    assert [exchange.reducers.traffic().bytes_sent for *_, exchange in ranks] == [2 * 2 * 3 * nbytes // 4] * 4
    assert all(exchange.reducers.traffic().exposed_s > 0 for *_, exchange in ranks)


def test_an_update_of_pieces_is_the_optimizers_own_on_each():
    """Two steps of AdamW, which counts them, on 40:48 and 90:100 in one array of state."""
    arena = Arena(lambda count, dtype: np.ones(count), TABLE, "float64")
    hyper = OptimizerConfig(momentum=0.5, eps=1e-8)
    update = OwnedUpdate(HOST, arena, make_optimizer("adamw", arena.spans, hyper), arena.grads, [(40, 48), (90, 100)])
    want, mean, square = np.ones(arena.count), np.zeros(arena.count), np.zeros(arena.count)
    for step in (1, 2):
        arena.grads[...] = np.arange(arena.count) * step
        update.begin(LR)
        update.apply(0, 95)
        update.apply(95, arena.count)
        for a, b in update.pieces:
            part = (array[a:b] for array in (want, arena.grads, mean, square))
            HOST.adamw(*part, LR, 0.5, hyper.beta2, hyper.eps, 0.0, step)
    np.testing.assert_array_equal(arena.weights, want)
    state = update.gathered(np.zeros(arena.count), lambda: None)
    np.testing.assert_array_equal(state["square"], square)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_a_part_of_a_parameter_whose_norm_is_not_summed_is_refused(optimizer):
    arena = Arena(lambda count, dtype: np.ones(count), TABLE, "float64")
    parts = HOST, arena, make_optimizer(optimizer, arena.spans, OptimizerConfig()), arena.grads, [(0, 20)]
    update = OwnedUpdate(*parts)
    update.begin(LR)
    with pytest.raises(ValueError, match="elements 0:20 cut the parameter at 0:48"):
        update.apply(0, 20)
    update = OwnedUpdate(*parts, add_norms=lambda squares: squares.__iadd__(1.0))
    update.begin(LR)
    update.apply(0, 20)
    assert (arena.weights[:20] != 1).all() and (arena.weights[20:] == 1).all()


def test_pieces():
    assert join([(6, 8), (0, 2), (4, 4), (2, 4)]) == [(0, 4), (6, 8)]
    assert list(cut([(0, 4), (6, 8)], 3, 7)) == [(3, 4), (6, 7)]
    assert common([(0, 4), (6, 8)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]
    assert elements([(0, 4), (6, 8)]) == 6 and join([]) == []


# ── delayed ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("algorithm", ["ring", "mapped", "mpi"])
def test_delayed_applies_the_sum_of_the_iteration_before(algorithm):
    """The updates of all-reduce, one iteration later; the last sum is kept. It begins with nothing pending."""
    (want, kept, _), *_ = run(AllReduce, 3, iterations=3)
    ranks = run(Delayed, 3, iterations=4, algorithm=algorithm, bucket_bytes=600)
    all_alike(ranks, want, kept, step=3)
    assert all(np.abs(state["pending"]).max() > 8 for _, state, _ in ranks)
    (weights, state, _), *_ = run(Delayed, 2, iterations=0)
    assert set(state) == {"step", "momentum"} and weights.any()


def test_delayed_exchanges_while_the_next_iteration_computes():
    def body(t):
        exchange, arena = bound(Delayed, t, algorithm="ring", bucket_bytes=1 << 20)
        iterate(exchange, arena, t.rank, 0)
        execution = exchange._gradients.reductions[0]
        for _ in range(10_000):
            exchange.before_read(arena.spans[0])
            if execution.moved and execution.test():
                return True
        return False

    assert LoopbackWorld(2).run(body) == [True, True]


# ── averaging ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def serial_rank(rank, iterations, begin=None, momentum=None):
    """Weights and momentum of one rank that trains alone for a while."""
    exchange, arena = bound(AllReduce, Loopback())
    if begin is not None:
        arena.weights[...] = begin
        exchange.owned_state.restore({"step": 0, "momentum": momentum})
    for iteration in iterations:
        iterate(exchange, arena, rank, iteration)
    return arena.weights.copy(), exchange.owned_state.state()["momentum"]


def periods(shares, count, every, treat, outer=None):
    """The formula: periods of ``every`` iterations alone, then means."""
    weights, momenta = [None] * len(shares), [None] * len(shares)
    velocity = 0.0
    before = bound(AllReduce, Loopback())[1].weights.copy()
    for period in range(count):
        iterations = range(period * every, (period + 1) * every)
        results = [serial_rank(k, iterations, weights[k], momenta[k]) for k in range(len(shares))]
        mean, momentum = (sum(s * r[i] for s, r in zip(shares, results, strict=True)) for i in (0, 1))
        if outer:
            back = before - mean
            velocity = outer[0] * velocity + back
            stepped = before - outer[1] * (back + outer[0] * velocity)
            mean[: 48 + 16], mean[80:] = stepped[: 48 + 16], stepped[80:]  # all but the running mean
        before, weights = mean, [mean] * len(shares)
        momenta = {"keep": [r[1] for r in results], "average": [momentum] * 3}[treat]
    return mean


@pytest.mark.parametrize("treat", ["keep", "average"])
@pytest.mark.parametrize("outer", [None, (0.5, 0.75)])
def test_averaging_is_its_formula(treat, outer):
    """Ranks with 1, 2 and 5 of 8 examples."""

    def body(t):
        exchange, arena = bound(Averaging, t, every=3, momentum=treat, outer=outer, algorithm="mapped")
        for iteration in range(6):
            iterate(exchange, arena, t.rank, iteration, (1, 2, 5)[t.rank], 8)
        return arena.weights.copy()

    want = periods((1 / 8, 2 / 8, 5 / 8), 2, 3, treat, outer)
    each_equal(LoopbackWorld(3).run(body), want, close=1e-12)


def test_averaging_sends_nothing_between_averages():
    def sent(every, momentum):
        def body(t):
            exchange, arena = bound(Averaging, t, every=every, momentum=momentum)
            for iteration in range(8):
                iterate(exchange, arena, t.rank, iteration, 1, 2)
            return exchange.reducers.traffic().bytes_sent

        return LoopbackWorld(2).run(body)[0]

    nbytes = run(AllReduce, 2, iterations=1)[0][2].reducers.traffic().bytes_sent
    assert (sent(4, "keep"), sent(4, "average"), sent(1, "average")) == (2 * nbytes, 4 * nbytes, 16 * nbytes)


@pytest.mark.parametrize("treat", ["keep", "average"])
def test_looking_in_the_middle_of_a_period_averages_once_and_aside(treat):
    def body(t):
        exchange, arena = bound(Averaging, t, every=4, momentum=treat)
        for iteration in range(2):
            iterate(exchange, arena, t.rank, iteration, t.rank + 1, 3)
        *arrays, state = seen_aside(exchange, arena, 2, t.rank + 1, 3)
        return *arrays, state["momentum"]

    one, other = LoopbackWorld(2).run(body)
    for kept, mean in ((0, 2), (1, 3)):
        np.testing.assert_array_equal(one[mean], other[mean])
        np.testing.assert_allclose(one[mean], one[kept] / 3 + 2 * other[kept] / 3, rtol=1e-12, atol=1e-14)


def test_what_a_mean_divides_by():
    exchange, _ = bound(Averaging, Loopback(), begin=2)
    exchange.before(1, 3, 10)
    assert exchange.denominator(3, 10) == 10
    exchange.before(2, 3, 10)
    assert exchange.denominator(3, 10) == 3


@pytest.mark.parametrize(
    ("optimizer", "options", "exact"),
    [
        ("sgd", {"every": 1}, True),
        ("nesterov", {"every": 1, "begin": 5}, True),
        ("adamw", {"every": 1}, False),
        ("lars", {"every": 1}, False),
        ("sgd", {"every": 2}, False),
        ("sgd", {"every": 1, "clip_norm": 1.0}, False),
        ("sgd", {"every": 1, "momentum": "keep"}, False),
        ("sgd", {"every": 1, "outer": (0.9, 0.7)}, False),
    ],
)
def test_when_averaging_is_exact(optimizer, options, exact):
    exchange, _ = bound(Averaging, Loopback(), optimizer, **options)
    assert exchange.facts.exact is exact


# ── all ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_names():
    assert [make_exchange(kit_of(sync=name)).facts.name for name in STRATEGIES] == list(STRATEGIES)
    assert ("none", *METHODS) == config_fields()["compress"].metadata["choices"]
    plain = make_exchange(kit_of())
    assert plain.facts.exact and plain.facts.state_is_local and not plain.facts.header


AVERAGED, SPARSE = {"sync": "averaging"}, {"compress": "top-k", "compress_ratio": 0.03}
BEGUN = {"average_from": 9, "outer_momentum": 0.9, "outer_lr": 0.7}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({**AVERAGED, **BEGUN}, ("every 8", "momentum: average", "iteration 9", "momentum 0.9", "rate 0.7")),
        (
            {**AVERAGED, "fragments": 2, "average_delay": 3, "mixing": 0.5},
            ("2 fragments", "3 iterations", "0.5"),
        ),
        ({**AVERAGED, "centre_rate": 0.25}, ("centre", "0.25")),
        ({**SPARSE, "compress_from": 9}, ("top-k", "iteration 9")),
        ({"compress": "powersgd", "sync": "delayed", "compress_rank": 2}, ("iteration", "PowerSGD of rank 2")),
        ({"compress": "quantise"}, ("8 bits", "error feedback")),
        ({"compress": "sign", "compress_from": 9}, ("sign", "iteration 9")),
        (
            {**SPARSE, "compress_bits": 2, "compress_chunk": 64, "residual_decay": 0.95},
            ("top-k 3 %", "64 elements", "2 bits", "0.95"),
        ),
    ],
    ids=str,
)
def test_the_header_says_how(flags, words):
    facts = make_exchange(kit_of(**flags)).facts
    assert facts.header == says(*words) and not facts.exact and not facts.state_is_local


@pytest.mark.parametrize(
    ("make", "options", "kept", "wanted"),
    [
        *((make, {}, ["mean", "square"], ["momentum"]) for make in (AllReduce, Sharded, Delayed, Averaging)),
        *((make, {}, ["mean", "square"], ["momentum"]) for make in (Gossip, Master)),
        (AllReduce, {}, ["momentum", "pending"], ["momentum"]),
        (Averaging, {"outer": (0.9, 0.7)}, ["momentum"], ["momentum", "outer_momentum", "period_begin"]),
    ],
)
def test_states_of_another_strategy_optimizer_or_model_are_refused(make, options, kept, wanted):
    exchange, arena = bound(make, Loopback(), **options)
    names = (", ".join([*names, "step"]) for names in (kept, wanted))
    with pytest.raises(CheckpointError, match=says("--optimizer", "--sync", "--compress", *names)):
        exchange.owned_state.restore({"step": 1, **dict.fromkeys(kept, np.zeros(arena.count))})
    with pytest.raises(CheckpointError, match=says(3, arena.count)):
        exchange.owned_state.restore({"step": 1, **dict.fromkeys(wanted, np.zeros(3))})


@pytest.mark.parametrize(
    ("make", "options", "awaited", "where"),
    [
        (AllReduce, {"algorithm": "star"}, "rank 1 to send: rank 0 in star", "tag 0"),
        *((make, {"algorithm": "ring"}, "rank 1 to", "rank 0 in ring") for make in (Sharded, Delayed)),
        (Averaging, {"every": 1}, "rank 1 to", "rank 0 in ring"),
        (AllReduce, {"compress": "top-k", "compress_ratio": 0.1}, "rank 1 to", "rank 0 in ring"),
        (AllReduce, {"compress": "powersgd", "compress_rank": 2}, "rank 1 to", "rank 0 in ring"),
        (Master, {}, "rank 1 to send: rank 0 in star-reduce", ""),
        (ParameterServer, {}, "rank 1 to send: rank 0 in server-reduce", ""),
        (Gossip, {}, "rank 1 to send", ""),
    ],
)
def test_a_rank_that_does_not_exchange_is_named(make, options, awaited, where):
    def body(t):
        exchange, arena = bound(make, t, deadline_s=0.05, **options)
        if t.rank == 0:
            with pytest.raises(StalledError, match=says("0.05 s", awaited, where)):
                iterate(exchange, arena, 0, 0)
                exchange.synchronize()

    LoopbackWorld(2).run(body)


def test_a_rank_without_examples_counts_those_of_the_others():
    share = ExampleShare()
    assert not share
    share.add(0, 10)
    assert share and share.local == 0
    share.add(5, 10)
    assert share.take() == 0.25 and not share
    share.add(0, 10)
    assert share.take() == 0


CUTS = {1: [(0, 2), (2, 3)], 2: [], 0: [(3, 5), (5, 8)]}  # rank 2 has nothing, rank 1 less than rank 0


@pytest.mark.parametrize(
    ("size", "options"), [(1, {}), (2, {"clip_norm": 5.0}), (3, {"optimizer": "adamw", "segment_bytes": 64}), (5, {})]
)
def test_weights_are_those_of_all_reduce_and_the_state_is_on_rank_0(size, options):
    (want, kept, _), *_ = run(AllReduce, size, algorithm="star", bucket_bytes=600, **options)
    state_size = sum(slot.size for name, slot in kept.items() if name != "step")
    ranks = run(Master, size, bucket_bytes=600, wrap=lambda t: delaying(t, seed=5), **options)
    all_alike(ranks, want)
    all_alike(ranks[:1], want, kept)
    for rank, (_, state, exchange) in enumerate(ranks):
        assert state["step"] == 4
        assert sum(slot.size for slot in exchange._update.slots.values()) == (0 if rank else state_size)


def test_the_master_reads_for_all_and_has_the_last_part():
    exchange = Master(LoopbackWorld(4).transport(0), ReferenceOps("float64"))
    assert exchange.facts.roles == Roles(trainers=(1, 2, 3, 0), loader=0)
    assert [exchange.facts.roles.reads(rank) for rank in range(4)] == [(0, 1), (None, 1), (None, 1), (None, 1)]
    assert Roles(trainers=(2, 0)).reads(0) == (1, 2) and Roles(trainers=(2, 0)).reads(1) == (None, 2)


def batch(count):
    examples = np.arange(count)
    return {"images": np.stack([examples, 10 * examples], 1).astype(np.uint8), "labels": (2 * examples).astype("i4")}


def test_each_rank_gets_its_examples_and_again_from_another_batch():
    """The second batch is larger than the first."""

    def body(t):
        exchange, _ = bound(Master, t)
        parts = []
        for cuts in ({1: [(0, 1)], 2: [(1, 2)], 0: [(2, 3)]}, CUTS):
            part = exchange.batches.scatter(batch(8 if t.rank == 0 else 0), cuts)
            parts.append((part["images"][:, 1].tolist(), part["labels"].tolist(), part["images"].dtype))
        return parts

    eight = np.dtype(np.uint8)
    assert LoopbackWorld(3).run(body) == [
        [([20], [4], eight), ([30, 40, 50, 60, 70], [6, 8, 10, 12, 14], eight)],
        [([0], [0], eight), ([0, 10, 20], [0, 2, 4], eight)],
        [([10], [2], eight), ([], [], eight)],
    ]


@pytest.mark.parametrize("late", [False, True])
def test_the_loss_of_all_is_computed_once_on_rank_0(late):
    """Outputs are numbers of examples; what comes of one is itself, a thousand times its label added."""

    def body(t):
        exchange, _ = bound(Master, delaying(t, seed=1) if late else t)
        labels = exchange.batches.scatter(batch(8 if t.rank == 0 else 0), CUTS)["labels"]
        calls = []

        def loss(outputs, labels):
            calls.append(labels.tolist())
            return outputs + 1000 * labels[:, None]

        start, gradients = CUTS[t.rank][0][0] if CUTS[t.rank] else 0, []
        for micro, (a, b) in enumerate(CUTS[t.rank]):
            outputs, part = np.arange(a, b, dtype="f8")[:, None], labels[a - start : b - start]
            gradients += exchange.batches.loss_gradient(micro, outputs, part, loss)[:, 0].tolist()
        return gradients, calls

    at_root, *others = LoopbackWorld(3).run(body)
    assert at_root == ([2001.0 * i for i in (3, 4, 5, 6, 7)], [[0, 2, 6, 8], [4, 10, 12, 14]])
    assert others == [([2001.0 * i for i in (0, 1, 2)], []), ([], [])]


def test_a_rank_that_does_not_come_is_named():
    def body(t):
        exchange, _ = bound(Master, t, deadline_s=0.05)
        if t.rank == 0:
            with pytest.raises(StalledError, match=says("rank 1 to receive")):
                exchange.batches.scatter(batch(2), {1: [(0, 1)], 0: [(1, 2)]})

    LoopbackWorld(2).run(body)
