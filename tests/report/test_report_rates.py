from ringtrain.report.rates import Rates, step_error


def test_nothing_is_known_before_the_first():
    assert (Rates().recent(), Rates().overall()) == (0.0, 0.0)


def test_a_pause_and_a_tail_do_not_move_the_median():
    rates = Rates(warm_up=0)
    for images, seconds in [(64, 0.5), (64, 0.5), (64, 60.0), (10, 0.5), (64, 0.5)]:
        rates.add(images, seconds)
    assert rates.overall() == rates.recent() == 128.0


def test_the_warm_up_is_left_out():
    rates = Rates(warm_up=10)
    for k in range(30):
        rates.add(8, 8.0 if k < 10 else 0.5)
    assert rates.overall() == 16.0


def test_the_warm_up_is_half_of_a_short_run():
    rates = Rates(warm_up=10)
    for seconds in (8.0, 8.0, 0.5, 0.5):
        rates.add(8, seconds)
    assert rates.overall() == 16.0


def test_of_late_is_a_window():
    rates = Rates(window=3)
    for seconds in (1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
        rates.add(8, seconds)
    assert rates.recent() == 16.0


def test_a_time_too_short_for_the_clock_is_left_out():
    rates = Rates()
    rates.add(8, 0.0)
    assert rates.overall() == 0.0
    rates.add(8, 0.5)
    assert rates.overall() == 16.0


def test_an_iteration_that_takes_longer_than_predicted_has_an_error_below_zero():
    """64 images in 0.32 s, in place of 0.2 s."""
    assert step_error(predicted_per_s=64 / 0.2, measured_per_s=64 / 0.32) == 0.2 / 0.32 - 1 == -0.375
