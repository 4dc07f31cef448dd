"""Types, rounding, and the operations on them."""

import numpy as np
import pytest

from ringtrain.allreduce.dtypes import OPS, TYPES
from ringtrain.bench.sweep.sizes import parse_names
from ringtrain.errors import UsageError


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


def test_whole_numbers_are_exact_up_to_the_stated_one_and_names_are_chosen():
    for numbers in TYPES.values():
        if not numbers.integral:
            most = np.array([numbers.whole - 1, numbers.whole], np.float64)
            assert numbers.decode(numbers.encode(most)).tolist() == most.tolist()
    assert parse_names("all", TYPES, "type") == list(TYPES)
    assert parse_names("int32, float32,int32", TYPES, "type") == ["int32", "float32"]
    with pytest.raises(UsageError, match=r"unknown type 'float23': did you mean 'float32'\? known: .*, or all"):
        parse_names("float23", TYPES, "type")
