"""Models recover what made the points."""

import pytest

from ringtrain.bench.fit import Model, Work, crossing, crossovers, fit, hold_out, judged, least_work, work_of
from ringtrain.collectives.catalogue import make_schedule

SIZES = [1 << k for k in range(10, 26, 2)]


def test_work_is_counted_from_the_steps():
    assert work_of(make_schedule("ring", 4)) == Work(6, 1.5, 0.75)
    assert work_of(make_schedule("star", 4)) == Work(4, 6.0, 3.0)
    assert work_of(make_schedule("sliced", 4)) == Work(2, 1.5, 0.75)
    assert work_of(make_schedule("ring", 1)) == Work(0, 0.0, 0.0)
    assert [least_work(p).rounds for p in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("name", ["ring", "star"])
def test_known_constants_are_recovered(name):
    work = work_of(make_schedule(name, 3))
    truth = Model(work, 5e-6, 2e-10, 1e-10)
    found = fit(work, [(n, truth.predict_s(n)) for n in SIZES], gamma_s_per_byte=1e-10)
    assert found.alpha_s == pytest.approx(5e-6) and found.beta_s_per_byte == pytest.approx(2e-10)
    assert found.gamma_s_per_byte == 1e-10


def test_gamma_explains_no_more_than_there_is():
    work = Work(2, 1.0, 0.5)
    found = fit(work, [(n, 1e-5 + n * 1e-10) for n in SIZES], gamma_s_per_byte=1.0)
    assert found.beta_s_per_byte == pytest.approx(0, abs=1e-20)
    assert found.predict_s(1 << 20) == pytest.approx(1e-5 + (1 << 20) * 1e-10)


@pytest.mark.parametrize("time", [lambda n: 1e-9 * n - 1e-7, lambda n: 1e-3 / n])
def test_nothing_is_fitted_below_zero(time):
    found = fit(Work(2, 1.0, 0.5), [(n, time(n)) for n in SIZES], gamma_s_per_byte=1e-12)
    assert min(found.alpha_s, found.beta_s_per_byte, found.gamma_s_per_byte) >= 0


def test_a_fit_is_judged_on_sizes_that_it_did_not_see():
    points = [(n, 1e-5 + n * 1e-9) for n in SIZES]
    seen, held = hold_out(points)
    assert [n for n, _ in held] == SIZES[1:-1:2] and not set(seen) & set(held)
    points[1] = (SIZES[1], 2 * points[1][1])  # a size held out took twice as long as the others say
    report = judged(Work(2, 1.0, 0.5), points, 1e-12)
    assert report["worst_error"] == pytest.approx(0.5) and report["median_error"] == pytest.approx(0, abs=1e-9)
    assert [n for n, _ in report["residuals"]] == [n for n, _ in seen]
    assert max(abs(error) for _, error in report["residuals"]) < 1e-9


def test_three_sizes_judge_nothing():
    report = judged(Work(2, 1.0, 0.5), [(1, 1.0), (2, 2.0), (3, 3.0)], 0.1)
    assert (report["held_out"], report["median_error"], report["worst_error"]) == ([], None, None)


def test_crossovers_predicted_and_measured():
    few, light = Model(Work(1, 2.0, 1.0), 1e-5, 1e-9, 0.0), Model(Work(4, 1.0, 0.5), 1e-5, 1e-9, 0.0)
    assert crossing(few, light) == crossing(light, few) == pytest.approx(3e4)
    assert crossing(few, few) is None
    assert crossing(few, Model(Work(4, 3.0, 1.5), 1e-5, 1e-9, 0.0)) is None
    points = {name: [(n, model.predict_s(n)) for n in SIZES] for name, model in (("few", few), ("light", light))}
    (found,) = crossovers({"few": few, "light": light}, points)
    assert found["algorithms"] == ["few", "light"]
    assert found["measured_bytes"] == [(1 << 14, 1 << 16)]
    assert found["measured_bytes"][0][0] < found["predicted_bytes"] < found["measured_bytes"][0][1]
