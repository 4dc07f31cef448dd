"""Compressed sums on small arrays: what is sent, what is kept, and that nothing is lost."""

import numpy as np
import pytest
from exchange_support import over_arena

from ringtrain.errors import ConfigError
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.memory.arena import lay_out
from ringtrain.memory.spans import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import error_feedback_of
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid

ZERO = Fill("constant")
SPANS = lay_out(
    (
        ("conv.weight", Parameter("weight", (3, 3, 2, 8), ZERO)),
        ("conv.bias", Parameter("bias", (8,), ZERO, role="bias")),
        ("n.mean", Parameter("mean", (8,), ZERO, role="statistic", rate=0.25)),
        ("n.scale", Parameter("scale", (8,), ZERO, role="norm")),
        ("fc.weight", Parameter("weight", (30, 20), ZERO)),
        ("last.bias", Parameter("bias", (20,), ZERO, role="bias")),
    )
)
COUNT = SPANS[-1].stop
CONV, FC = SPANS[0], SPANS[4]


def flat(draw):
    return over_arena(SPANS, draw)


def whole_numbers(rank, iteration):
    """Different magnitudes in one parameter, all of them small whole numbers: sums are exact in any order."""
    rng = np.random.default_rng([rank, iteration])
    return flat(lambda shape: rng.integers(-99, 100, shape))


def normal(rank, iteration):
    rng = np.random.default_rng([rank, iteration])
    return flat(rng.standard_normal)


def bound(transport, method, begin=0, dtype="float64", ops=None, **options):
    ops = ops or ReferenceOps(dtype)
    summing = error_feedback_of(method, begin, transport, ops, deadline_s=20.0, **options)
    buffer = transport.allocate(COUNT, np.dtype(dtype))
    summing.rehearse()
    return summing, summing.bind(SPANS, buffer), buffer


def add_up(summing, flight, buffer, iteration, gradient, announce=True):
    """One sum: (total, residual)."""
    summing.before(iteration)
    buffer[...] = gradient
    for span in reversed(SPANS) if announce else ():
        flight.grad_ready(span)
    flight.wait_all()
    return buffer.copy(), summing._residual.copy()


def run(make, size, gradients=whole_numbers, iterations=3, nodes=1, wrap=lambda t: t, announce=True, **options):
    """[rank][iteration] → (gradient, total, residual)."""

    def body(t):
        parts = bound(wrap(t), make(), **options)
        every = [gradients(t.rank, iteration) for iteration in range(iterations)]
        return [(g, *add_up(*parts, i, g, announce)) for i, g in enumerate(every)]

    return LoopbackWorld(size, nodes).run(body)


def check_nothing_is_lost(ranks, tolerance=0.0):
    """What was sent and the new residuals are the gradients and the old residuals, in each iteration."""
    before = np.zeros(COUNT)
    for each in zip(*ranks, strict=True):
        (_, total, _), after = each[0], sum(residual for *_, residual in each)
        np.testing.assert_allclose(total + after, sum(g for g, *_ in each) + before, rtol=0, atol=tolerance)
        before = after


def elements(array, span):
    return array[span.start : span.start + span.count]


# ── top-k ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_each_rank_sends_its_largest_elements_and_others_go_whole():
    ranks = run(lambda: TopK(0.1), 3, iterations=1)
    gradients, total = [rank[0][0] for rank in ranks], ranks[0][0][1]
    for span, k in ((CONV, 15), (FC, 60)):  # 14.4 and 60
        sent = np.zeros(span.count)
        for gradient, _, residual in (rank[0] for rank in ranks):
            kept = elements(gradient, span).copy()
            chosen = np.argsort(-np.abs(kept), kind="stable")[:k]
            sent[chosen] += kept[chosen]
            kept[chosen] = 0
            np.testing.assert_array_equal(elements(residual, span), kept)
        np.testing.assert_array_equal(elements(total, span), sent)
    for span in SPANS:
        if span not in (CONV, FC):
            np.testing.assert_array_equal(elements(total, span), sum(elements(g, span) for g in gradients))


def test_what_is_learnt_does_not_depend_on_buckets_or_announcements_or_late_messages():
    (want, *_) = run(lambda: TopK(0.05), 3)
    for options in (
        {"bucket_bytes": 1},
        {"bucket_bytes": 1 << 20, "announce": False},
        {"wrap": lambda t: delaying(t, seed=3), "segment_bytes": 64},
        {"nodes": 2, "algorithm": "hierarchical"},
    ):
        np.testing.assert_array_equal(run(lambda: TopK(0.05), 3, **options)[0], want)


def test_nan_is_sent_at_once():
    def gradients(rank, iteration):
        spoilt = whole_numbers(rank, iteration)
        if rank == 1:
            spoilt[FC.start + 7] = np.nan
        return spoilt

    for rank in run(lambda: TopK(0.002), 2, gradients, iterations=1):
        assert np.flatnonzero(np.isnan(rank[0][1])).tolist() == [FC.start + 7]


# ── PowerSGD ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def of_rank_two(rank, iteration):
    """Matrices whose columns lie in one plane, the same on all ranks."""
    planes, factors = np.random.default_rng(7), np.random.default_rng([rank, iteration])

    def draw(shape):
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        return planes.standard_normal((rows, 2)) @ factors.standard_normal((2, columns))

    return flat(draw)


def test_the_sum_is_projected_as_the_paper_says():
    """Two iterations by NumPy, with warm start and error feedback, on the sum of all ranks alone."""
    ranks, ops = run(lambda: PowerSGD(3), 3, normal, iterations=2), ReferenceOps("float64")
    for span in (CONV, FC):
        columns = span.shape[-1]
        q, kept = np.zeros((columns, 3)), 0
        ops.orthonormalise(q)
        for each in zip(*ranks, strict=True):
            m = sum(elements(g, span).reshape(-1, columns) for g, *_ in each) + kept
            p, _ = np.linalg.qr(m @ q)
            q, kept = m.T @ p, m - p @ p.T @ m
            np.testing.assert_allclose(elements(each[0][1], span), (p @ q.T).ravel(), rtol=0, atol=1e-12)


def test_a_gradient_of_zero_does_not_end_the_iteration():
    def gradients(rank, iteration):
        return np.zeros(COUNT) if iteration == 0 else of_rank_two(rank, iteration)

    for rank in run(lambda: PowerSGD(2), 2, gradients, iterations=3):
        assert not rank[0][1].any()
        assert all(np.abs(residual).max() < 1e-10 for *_, residual in rank)


def test_what_is_larger_in_factors_goes_whole():
    method = PowerSGD(6)
    assert [span.name for span in SPANS if method.compresses(span)] == ["fc.weight"]  # 6·26 > 144, 6·50 < 600
    assert [span.name for span in SPANS if PowerSGD(5).compresses(span)] == ["conv.weight", "fc.weight"]
    ranks = run(lambda: method, 1, normal, iterations=1)
    np.testing.assert_array_equal(elements(ranks[0][0][1], CONV), elements(ranks[0][0][0], CONV))
    with pytest.raises(ConfigError, match=says("--compress", "--compress-rank", 12)):
        run(lambda: PowerSGD(12), 1)


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
EITHER = {"top-k": lambda: TopK(0.1), "powersgd": lambda: PowerSGD(2)}


@pytest.mark.parametrize(
    ("method", "gradients", "close"),
    [(lambda: TopK(1.0), whole_numbers, 0.0), (EITHER["powersgd"], of_rank_two, 1e-10)],
)
@pytest.mark.parametrize(
    ("algorithm", "size"),
    grid(
        lambda algorithm, size: size == 3 or algorithm == "ring",
        ["ring", "circulant", "mapped", "mpi", "auto"],
        [1, 2, 3, 4, 5],
    ),
)
def test_what_leaves_nothing_out_is_an_all_reduce(size, algorithm, method, gradients, close):
    """All elements, and factors of the rank that gradients have."""
    for bucket_bytes in (1, 3000, 1 << 20):
        ranks = run(method, size, gradients, algorithm=algorithm, bucket_bytes=bucket_bytes)
        for each in zip(*ranks, strict=True):
            for _, total, residual in each:
                np.testing.assert_allclose(total, sum(gradient for gradient, *_ in each), rtol=0, atol=close)
                assert np.abs(residual).max() <= close


@pytest.mark.parametrize("method", EITHER)
def test_gradients_go_whole_up_to_then(method):
    def body(t):
        summing, flight, buffer = bound(t, EITHER[method](), begin=2, algorithm="ring")
        sent, done = [0], []
        for iteration in range(4):
            gradient = whole_numbers(t.rank, iteration)
            done.append((gradient, *add_up(summing, flight, buffer, iteration, gradient)))
            sent.append(flight.bytes_sent)
        return done, np.diff(sent)

    ranks = LoopbackWorld(4).run(body)
    for each in zip(*(done[:2] for done, _ in ranks), strict=True):
        for _, total, residual in each:
            np.testing.assert_array_equal(total, sum(gradient for gradient, *_ in each))
            assert not residual.any()
    assert all(done[2][2].any() for done, _ in ranks)
    check_nothing_is_lost([done for done, _ in ranks], tolerance=1e-10)
    for _, sent in ranks:
        assert sent[0] == sent[1] == 2 * 3 * 8 * COUNT // 4 and sent[2] == sent[3] < sent[0] / 2


def test_one_rank_says_nothing_of_bytes_and_auto_says_what_it_took():
    assert bound(Loopback(), TopK(0.1))[0].notes == []
    notes = LoopbackWorld(2).run(lambda t: bound(t, TopK(0.1), algorithm="auto")[0].notes)[1]
    assert [note.partition(":")[0] for note in notes] == ["auto", says("10 %")]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("method", EITHER)
def test_the_residual_goes_on_at_any_number_of_ranks(method, size):
    """Its sum, each element whole on one rank; in the run that wrote the state each rank keeps its own."""

    def write(t):
        parts = bound(t, EITHER[method]())
        before = add_up(*parts, 0, whole_numbers(t.rank, 0))[1].copy()
        state = parts[0].state()
        np.testing.assert_array_equal(parts[0]._residual, before)
        return before, state

    written = LoopbackWorld(3).run(write)
    state = written[0][1]
    np.testing.assert_allclose(state["residual"], sum(before for before, *_ in written), rtol=0, atol=1e-12)

    def read(t):
        summing, *_ = bound(t, EITHER[method]())
        summing.restore(state)
        return summing._residual.copy()

    shares = LoopbackWorld(size).run(read)
    np.testing.assert_array_equal(sum(shares), state["residual"])
    counts, total = (
        [np.count_nonzero(elements(share, FC)) for share in shares],
        np.count_nonzero(elements(sum(shares), FC)),
    )
    assert sum(counts) == total and max(counts) - min(counts) <= 0.2 * total


def test_the_basis_goes_on_with_as_many_columns_as_there_are():
    summing, *rest = bound(Loopback(), PowerSGD(3))
    add_up(summing, *rest, 0, normal(0, 0))
    state, factors = summing.state(), {}
    for rank in (2, 3, 5):
        method = PowerSGD(rank)
        bound(Loopback(), method)[0].restore(state)
        factors[rank] = [matrix.q.copy() for bucket in method.matrices for matrix in bucket]
    for two, three, five in zip(*factors.values(), strict=True):
        np.testing.assert_array_equal(two, three[:, :2])
        np.testing.assert_array_equal(five[:, :3], three)
        assert three.all() and not five[:, 3:].any()


def test_a_state_without_residual_and_of_another_method_will_do():
    summing, *rest = bound(Loopback(), TopK(0.1))
    summing.restore({"step": 3, "momentum": np.ones(COUNT)})
    _, residual = add_up(summing, *rest, 0, normal(0, 0))
    other, *_ = bound(Loopback(), PowerSGD(2))
    other.restore(summing.state())
    np.testing.assert_array_equal(other._residual, residual)
