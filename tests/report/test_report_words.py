from ringtrain.report.end_events import Ranks
from ringtrain.report.screen import words
from tests.says import says

LISTS = ("images", "bytes_sent", "bytes_received", "between_bytes", "weights_bytes", "gradient_bytes", "state_bytes")


def ranks(**given):
    lists = {key: [0, 0] for key in (*LISTS, "peak_bytes")}
    return Ranks(**lists, updates=[10, 4], training_s=[2.0, 0.0], exposed_s=[0.0, 0.0], **given)


def test_ranks_that_are_in_step_are_not_said_to_be_apart():
    assert words.lag_line(ranks()) is None


def test_how_far_ranks_were_apart_and_how_fast_each_was():
    """A clock lag of 0 nine times, of 1 once; version lags 0, 2 and 2: their medians, and the most."""
    found = words.lag_line(ranks(lag={"clock": {0: 9, 1: 1}, "version": {2: 2, 0: 1}, "other": {}}))
    lags = says("clock", 0, 1), says("version", 2)
    assert found == says(*lags, "5, 0")
