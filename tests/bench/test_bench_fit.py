"""Models recover what made the points."""

import pytest

from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, LinkClass
from ringtrain.bench.model.fit import (
    FittedModel,
    Regime,
    fabric_of,
    fit,
    hold_out,
    judged,
    work_by_name,
)
from ringtrain.bench.model.work import AlgorithmWork, least_work, work_of
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.inspect.cost import Fabric
from ringtrain.collectives.topology import Topology, even

SIZES = [1 << k for k in range(10, 26, 2)]
MANY = [1 << k for k in range(10, 27)]


def known(**constants) -> Fabric:
    return Fabric(**{"alpha_s": 0, "beta_s": 0, "local_alpha_s": 0, "local_beta_s": 0, "gamma_s": 0, **constants})


def model(work: AlgorithmWork, **constants) -> FittedModel:
    return FittedModel(work, (Regime(0.0, known(**constants)),))


def local(rounds: int, sent: float, added: float, alpha: float, beta: float, gamma: float = 0.0) -> FittedModel:
    return model(AlgorithmWork(rounds, sent, added), local_alpha_s=alpha, local_beta_s=beta, gamma_s=gamma)


def test_work_is_counted_from_the_steps_and_apart_between_nodes():
    four = even(4)
    assert work_of(make_schedule("ring", 4), four) == AlgorithmWork(6, 1.5, 0.75)
    assert work_of(make_schedule("star", 4), four) == AlgorithmWork(4, 6.0, 3.0)
    assert work_of(make_schedule("sliced", 4), four) == AlgorithmWork(2, 1.5, 0.75)
    assert work_of(make_schedule("ring", 1), even(1)) == AlgorithmWork(0, 0.0, 0.0)
    two_by_two = even(4, 2)
    ring = work_of(make_schedule("ring", 4), two_by_two)
    # Ranks 1 and 3 send to the other node in every step, and a node passes what one of them sends.
    assert (ring.rounds, ring.rounds_between, ring.sent_between) == (0, 6, 1.5)
    hierarchical = work_of(make_schedule("hierarchical", two_by_two), two_by_two)
    # Half of the buffer a rank, over two nodes: both ranks together pass 2(m-1)/m of it.
    assert (hierarchical.rounds, hierarchical.rounds_between) == (2, 2)
    assert (hierarchical.sent, hierarchical.sent_between, hierarchical.added) == (1.0, 1.0, 0.75)
    spread = work_of(make_schedule("ring", 4), even(4, 4))
    assert spread == AlgorithmWork(0, 0.0, 0.75, 6, 1.5, 1.5)
    assert (ring.rank_between, hierarchical.rank_between) == (0.75, 0.5)  # of one that sends alone; of every rank
    leader = make_schedule("hierarchical:tree:ring", Topology(((0, 1, 2), (3,))))
    assert work_of(leader, Topology(((0, 1, 2), (3,)))).sent_between == 1.0
    assert [least_work(even(p)).rounds for p in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 3, 3, 4]
    assert least_work(even(4)) == AlgorithmWork(2, 1.5, 0.75)
    assert least_work(even(4, 2)) == AlgorithmWork(1, 1.0, 0.75, 1, 1.0, 0.5)
    assert least_work(even(4, 4)) == AlgorithmWork(0, 0.0, 0.75, 2, 1.5, 1.5)
    assert work_by_name("no schedule", even(4)) == least_work(even(4))
    assert work_by_name("ring", even(4)).rounds == 6
    assert work_by_name("hierarchical:sliced:ring", even(4, 2)).rounds_between == 2


def truth_at(truth: FittedModel, sizes=SIZES) -> list:
    return [(n, truth.predict_s(n)) for n in sizes]


@pytest.mark.parametrize(
    ("name", "nodes", "fitted", "constants"),
    [
        ("ring", 1, {"local_alpha_s": 5e-6, "local_beta_s": 2e-10}, {"gamma_s": 1e-10}),
        ("star", 1, {"local_alpha_s": 5e-6, "local_beta_s": 2e-10}, {"gamma_s": 1e-10}),
        # On several nodes the slow links are fitted, and the others known.
        (
            "hierarchical",
            2,
            {"alpha_s": 5e-5, "beta_s": 8e-9},
            {"local_alpha_s": 2e-6, "local_beta_s": 1e-10, "gamma_s": 5e-11},
        ),
    ],
)
def test_known_constants_are_recovered(name, nodes, fitted, constants):
    topology = even(4, nodes)
    work = work_of(make_schedule(name, topology), topology)
    (regime,) = fit(work, truth_at(model(work, **fitted, **constants)), known(**constants)).regimes
    for constant, value in (fitted | constants).items():
        assert getattr(regime.fabric, constant) == (pytest.approx(value) if constant in fitted else value)


def test_what_is_known_explains_no_more_than_there_is():
    work = AlgorithmWork(2, 1.0, 0.5)
    points = [(n, 1e-5 + n * 1e-10) for n in SIZES]
    flat = fit(work, points, known(gamma_s=1.0))
    assert flat.regimes[0].fabric.local_beta_s == pytest.approx(0, abs=1e-20)
    assert flat.predict_s(1 << 20) == pytest.approx(1e-5 + (1 << 20) * 1e-10)
    apart = fit(AlgorithmWork(2, 1.0, 0.5, 2, 1.0), points, known(local_alpha_s=1.0, local_beta_s=1.0))
    assert (apart.regimes[0].fabric.alpha_s, apart.regimes[0].fabric.beta_s) == (0, 0)
    assert apart.predict_s(1 << 20) == pytest.approx(1e-5 + (1 << 20) * 1e-10)


@pytest.mark.parametrize("time", [lambda n: 1e-9 * n - 1e-7, lambda n: 1e-3 / n])
def test_nothing_is_fitted_below_zero(time):
    for regime in fit(AlgorithmWork(2, 1.0, 0.5), [(n, time(n)) for n in SIZES], known(gamma_s=1e-12)).regimes:
        fabric = regime.fabric
        assert min(fabric.local_alpha_s, fabric.local_beta_s, fabric.gamma_s) >= 0


def test_two_regimes_where_one_line_is_clearly_worse():
    cache, memory = (local(2, 1.0, 0.5, *constants) for constants in ((1e-5, 1e-10), (1e-5, 4e-10)))
    points = truth_at(cache, MANY[:9]) + truth_at(memory, MANY[9:])
    fitted = fit(AlgorithmWork(2, 1.0, 0.5), points, known())
    assert [regime.first_bytes for regime in fitted.regimes] == [0.0, pytest.approx((MANY[8] * MANY[9]) ** 0.5)]
    assert [fitted.predict_s(n) for n, _ in points] == pytest.approx([seconds for _, seconds in points])
    assert len(fit(AlgorithmWork(2, 1.0, 0.5), truth_at(cache, MANY), known()).regimes) == 1
    points = [(n, (1e-5 + 1e-10 * n) * (1 + 0.05 * (-1) ** i)) for i, n in enumerate(MANY)]  # noise
    assert len(fit(AlgorithmWork(2, 1.0, 0.5), points, known()).regimes) == 1


def test_a_fit_is_judged_on_sizes_that_it_did_not_see():
    points = [(n, 1e-5 + n * 1e-9) for n in SIZES]
    seen, unseen = hold_out(points)
    assert [n for n, _ in unseen] == SIZES[1:-1:2] and not set(seen) & set(unseen)
    unseen[0] = (SIZES[1], 2 * points[1][1])  # a size held out took twice as long as the others say
    report = judged(fit(AlgorithmWork(2, 1.0, 0.5), seen, known()), seen, unseen)
    assert report["worst_error"] == pytest.approx(0.5) and report["median_error"] == pytest.approx(0, abs=1e-9)
    assert [n for n, _ in report["residuals"]] == [n for n, _ in seen]
    assert max(abs(error) for _, error in report["residuals"]) < 1e-9
    seen, unseen = hold_out([(1, 1.0), (2, 2.0), (3, 3.0)])  # too few to judge
    report = judged(fit(AlgorithmWork(2, 1.0, 0.5), seen, known()), seen, unseen)
    assert (report["held_out"], report["median_error"], report["worst_error"]) == ([], None, None)


def test_a_calibration_gives_the_constants():
    calibration = Calibration(
        {INSIDE: LinkClass(1e-6, 9, 8, 4e9), BETWEEN: LinkClass(2e-5, 1e8, 1.25e8, 5e7)}, 3e-11, 2
    )
    assert fabric_of(calibration) == Fabric(2e-5, 8e-9, 1e-6, 2.5e-10, 3e-11, 0.0)
    assert fabric_of(Calibration({}, 3e-11, 1)) == known(gamma_s=3e-11, o_s=0.0)
