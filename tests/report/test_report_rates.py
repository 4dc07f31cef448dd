import pytest

from ringtrain.report.rates import Rates


@pytest.mark.parametrize(
    ("settings", "added", "overall"),
    [
        ({}, [], 0.0),
        ({"warm_up": 0}, [(64, 0.5), (64, 0.5), (64, 60.0), (10, 0.5), (64, 0.5)], 128.0),  # a pause and a tail
        ({"warm_up": 10}, [(8, 8.0)] * 10 + [(8, 0.5)] * 20, 16.0),  # the warm-up is left out
        ({"warm_up": 10}, [(8, 8.0), (8, 8.0), (8, 0.5), (8, 0.5)], 16.0),  # half of a short run
        ({}, [(8, 0.0)], 0.0),  # too short for the clock
        ({}, [(8, 0.0), (8, 0.5)], 16.0),
        ({"period": 3}, [(8, 0.5), (8, 0.5), (8, 2.0)] * 3, 8.0),  # every third exchanges
        ({"period": 32}, [(8, 0.5), (8, 1.5)], 8.0),  # none so far
    ],
)
def test_the_rate_of_a_run_is_a_median(settings, added, overall):
    rates = Rates(**settings)
    for images, seconds in added:
        rates.add(images, seconds)
    assert rates.overall() == overall
    if settings.get("warm_up") == 0:
        assert rates.recent() == overall


def test_of_late_is_a_window():
    rates = Rates(window=3)
    assert rates.recent() == 0.0
    for seconds in (1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
        rates.add(8, seconds)
    assert rates.recent() == 16.0
