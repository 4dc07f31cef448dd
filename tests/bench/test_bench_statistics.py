"""Known samples, known figures."""

import numpy as np
import pytest

from ringtrain.bench.measure.rows import ratio, summarise


def test_figures_of_known_samples_and_the_interval_of_a_ratio():
    figures = summarise(range(1, 102))
    assert figures["median_s"] == 51 and figures["min_s"] == 1
    assert (figures["p5_s"], figures["p95_s"], figures["p99_s"]) == (6, 96, 100)
    assert figures["cv"] == pytest.approx(np.std(range(1, 102)) / 51)
    assert summarise([2.0])["cv"] == 0
    rng = np.random.default_rng(1)
    a, b = 3 + rng.standard_normal(50) / 10, 1 + rng.standard_normal(50) / 10
    value, low, high = ratio(a, b, True, seed=0)
    assert value == np.median(a) / np.median(b)
    assert 2.5 < low < value < high < 3.5
    assert ratio(a, b, True, seed=0) == (value, low, high)
    assert ratio(a, b, True, seed=1) != (value, low, high)
    shared = np.random.default_rng(2).uniform(1, 10, 41)
    _, low, high = ratio(2 * shared, shared, True, seed=0)
    assert low == pytest.approx(2) and high == pytest.approx(2)
    _, low, high = ratio(2 * shared, shared, False, seed=0)
    assert high - low > 0.2


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng, covered = np.random.default_rng(3), 0
    for seed in range(100):
        _, low, high = ratio(rng.normal(2, 0.2, 31), rng.normal(1, 0.1, 25), False, seed)
        covered += low <= 2 <= high
    assert 88 <= covered <= 100
