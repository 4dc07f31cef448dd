"""Learning rates at iterations where they are known."""

import math

import pytest

from ringtrain.errors import ConfigError
from ringtrain.optim.lr import POLICIES, LearningRate, iterations_in
from tests.says import says

KNOWN = [
    (LearningRate(0.1), {0: 0.1, 10**6: 0.1}),
    (LearningRate(0.1, "step", (10,), gamma=0.5), {0: 0.1, 9: 0.1, 10: 0.05, 19: 0.05, 35: 0.0125}),
    (
        LearningRate(0.001, "multistep", (60000, 65000), gamma=0.1),
        {0: 1e-3, 59999: 1e-3, 60000: 1e-4, 64999: 1e-4, 65000: 1e-5},
    ),
    (LearningRate(1.0, "poly", power=2, total=10), {0: 1.0, 5: 0.25, 9: 0.01, 10: 0.0, 99: 0.0}),
    # Caffe's LeNet solver prints 0.00596843 at iteration 9,900.
    (LearningRate(0.01, "inv", gamma=1e-4, power=0.75), {0: 0.01, 9900: 0.00596843, 10000: 0.0059460}),
    (LearningRate(0.4, "cosine", total=100), {0: 0.4, 50: 0.2, 25: 0.2 * (1 + math.sqrt(0.5)), 100: 0.0, 200: 0.0}),
    (LearningRate(0.4, warmup=4), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4}),
    (LearningRate(0.4, "cosine", total=100, floor=0.1), {0: 0.4, 50: 0.25, 100: 0.1, 200: 0.1}),
    (LearningRate(1.0, "poly", power=2, total=10, floor=0.2), {0: 1.0, 5: 0.4, 10: 0.2, 99: 0.2}),
    (LearningRate(0.1, "step", (10,), gamma=0.5, floor=0.03), {0: 0.1, 10: 0.05, 20: 0.03, 90: 0.03}),
    (LearningRate(0.1, "multistep", (10,), gamma=0.1, floor=0.03, warmup=2), {0: 0.05, 9: 0.1, 10: 0.03}),
    (LearningRate(0.01, "inv", gamma=1e-4, power=0.75, floor=0.008), {0: 0.01, 9900: 0.008}),
    (LearningRate(0.4, "poly", total=10, warmup=2), {0: 0.2, 1: 0.36, 2: 0.32}),
]


@pytest.mark.parametrize(("schedule", "values"), KNOWN, ids=lambda x: getattr(x, "policy", None))
def test_known_values(schedule, values):
    assert {schedule.policy for schedule, _ in KNOWN} == set(POLICIES)
    for iteration, value in values.items():
        assert schedule.at(iteration) == pytest.approx(value, rel=1e-5, abs=1e-15)


@pytest.mark.parametrize("policy", ["step", "multistep", "poly", "inv", "cosine"])
def test_rates_never_rise_after_warm_up(policy):
    schedule = LearningRate(0.3, policy, (7,), gamma=0.5, total=50, warmup=5)
    rates = [schedule.at(i) for i in range(60)]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[0] < rates[5] > rates[49]


@pytest.mark.parametrize(
    ("length", "per_epoch", "iterations"),
    [
        (400, 157, 400),
        (0, 157, 0),
        ("5ep", 157, 785),
        ("0ep", 157, 0),
        ("0.5ep", 157, 79),
        ("0.001ep", 157, 1),
        ("0.1ep", 10, 1),
        ("0.7ep", 10, 7),
        ("999999999ep", 3, 2_999_999_997),
    ],
)
def test_epochs_are_whole_iterations(length, per_epoch, iterations):
    """In decimals, not in binary fractions: a tenth of 10 is 1, and 7 tenths are 7."""
    assert iterations_in(length, per_epoch) == iterations


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "cosin"}, says("'cosin'", "did you mean 'cosine'")),
        ({"policy": "step"}, says("'step'", [])),
        ({"policy": "step", "steps": (0,)}, says("'step'", [0])),
        ({"policy": "step", "steps": (1, 2)}, says("'step'", [1, 2])),
        ({"policy": "multistep"}, says("'multistep'", [])),
        ({"policy": "multistep", "steps": (5, 5)}, says("'multistep'", [5, 5])),
        ({"policy": "multistep", "steps": (-5, 5)}, says("'multistep'", [-5, 5])),
        ({"policy": "poly"}, says("'poly'", 0)),
        ({"policy": "cosine", "total": -1}, says("'cosine'", -1)),
        ({"warmup": -1}, says(-1, "warmup", "iterations")),
        ({"policy": "cosine", "total": 10, "floor": 0.2}, says("0.1", "0.2")),  # above the rate
    ],
)
def test_unusable_numbers_are_explained(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LearningRate(0.1, **arguments)
