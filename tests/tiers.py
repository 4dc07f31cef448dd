"""The daily tests, and those that only RINGTRAIN_LONG_RUNS=1 adds, as scripts/check-full sets it."""

import os
from itertools import product

import pytest


def lasting(daily: int, full: int) -> int:
    """A length of a test: ``full`` where `scripts/check-full` asks for it."""
    return full if os.environ.get("RINGTRAIN_LONG_RUNS") == "1" else daily


def thorough(*cases) -> list:
    """Cases of a parametrized test whose promise another case holds daily. A tuple is one case of several values."""
    marks = pytest.mark.thorough
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks) for case in cases]


def daily(names, *kept) -> list:
    """All the names; those that are not kept are thorough."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.thorough) for name in names]


def grid(is_daily, *axes) -> list:
    """Every combination of the values of the axes; those of which ``is_daily`` says no are thorough."""
    return [each if is_daily(*each) else pytest.param(*each, marks=pytest.mark.thorough) for each in product(*axes)]
