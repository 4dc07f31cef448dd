"""Types, rounding, and the operations on them."""

import numpy as np
import pytest

from ringtrain.bench.choose import choose
from ringtrain.errors import UsageError
from ringtrain.exchange.numbers import OPS, TYPES
from ringtrain.ops import bfloat16


def test_bfloat16_rounds_to_nearest_even():
    step = 2.0**-7  # between 1 and 2
    given = np.array([1, 1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -3.5, np.inf, 1e-40, 0], np.float32)
    wanted = [1, 1, 1 + 2 * step, 1 + step, -3.5, np.inf, 1e-40, 0]
    got = bfloat16.decode(bfloat16.encode(given))
    assert got[:6].tolist() == wanted[:6] and got[6] == pytest.approx(1e-40, rel=2e-2) and got[7] == 0


def test_bfloat16_keeps_nan_and_every_value_it_has():
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = bfloat16.decode(every)
    numbers = ~np.isnan(values)
    assert (bfloat16.encode(values)[numbers] == every[numbers]).all()
    assert np.isnan(bfloat16.decode(bfloat16.encode(values[~numbers]))).all()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_operation_on_every_type(name, op):
    numbers = TYPES[name]
    a, b = (numbers.encode(np.array(values)) for values in ([1, -5, 7], [2, 3, -9]))
    y = np.empty_like(a)
    numbers.combine(op)(a, b, y)
    wanted = {"sum": [3, -2, -2], "mean": [3, -2, -2], "max": [2, 3, 7], "min": [1, -5, -9]}[op]
    assert numbers.decode(y).tolist() == wanted
    if op == "mean" and not numbers.integral:
        numbers.divide(y, 2)
        assert numbers.decode(y).tolist() == [1.5, -1, -1]


def test_whole_numbers_are_exact_up_to_the_stated_one():
    for numbers in TYPES.values():
        if not numbers.integral:
            most = np.array([numbers.whole - 1, numbers.whole], np.float64)
            assert numbers.decode(numbers.encode(most)).tolist() == most.tolist()


def test_names_are_chosen_or_named():
    assert choose("all", TYPES, "type") == list(TYPES)
    assert choose("int32, float32,int32", TYPES, "type") == ["int32", "float32"]
    with pytest.raises(UsageError, match=r"unknown type 'float23': did you mean 'float32'\? known: .*, or all"):
        choose("float23", TYPES, "type")
