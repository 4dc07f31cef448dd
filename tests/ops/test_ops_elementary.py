"""Elementary functions of exact arithmetic: as near as NumPy's, and these very bits."""

import hashlib
import math

import numpy as np
import pytest

from ringtrain.ops.elementary import cos_and_sin, half_cosine, log, power

WIDE = np.longdouble
PI = 4 * np.arctan(WIDE(1))


def test_log_has_the_digits_of_float64():
    rng = np.random.default_rng(1)
    x = np.concatenate([1 - rng.random(20_000), 2.0 ** -rng.uniform(0, 53, 20_000), 1 - 1e-9 * rng.random(999), [0.5]])
    wanted = np.log(x.astype(WIDE))
    assert np.abs(log(x) / wanted - 1).max() < 6e-16
    assert log(np.ones(1))[0] == 0


def test_cos_and_sin_have_the_digits_of_float64():
    turns = np.concatenate([np.random.default_rng(2).random(20_000), np.arange(65) / 64, [1 - 2.0**-53]])
    angle = 2 * PI * turns.astype(WIDE)
    for got, wanted in zip(cos_and_sin(turns), (np.cos(angle), np.sin(angle)), strict=True):
        assert np.abs(got - wanted).max() < 2e-16
    assert [x.tolist() for x in cos_and_sin(np.arange(5) / 4)] == [[1, 0, -1, 0, 1], [0, 1, 0, -1, 0]]


def test_these_bits():
    x = (1 + np.arange(1 << 12)) / (1 << 12)
    digest = hashlib.sha256(b"".join(each.tobytes() for each in (log(x), *cos_and_sin(x)))).hexdigest()
    assert digest.startswith("7cdc9b8dbcece094")


def test_half_cosine():
    for t in np.linspace(0, 1, 99):
        assert half_cosine(t) == pytest.approx((1 + math.cos(math.pi * t)) / 2, rel=1e-14, abs=1e-16)
    assert (half_cosine(0), half_cosine(1)) == (1, 0)


def test_powers_are_rounded_once():
    for x, y in ((0.9, 3), (0.999, 12_345), (0.5, 0.75), (1.7, -0.75), (3.0, 2.0), (0.1, 200)):
        assert power(x, y) == pytest.approx(x**y, rel=1e-15)
    assert [power(0.0, 0), power(0.0, 2), power(10.0, 400), power(0.1, 10**9)] == [1, 0, math.inf, 0]
