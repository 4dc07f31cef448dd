"""Double buffering is not serial SGD."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, NETS, results


def test_it_is_not_serial_and_learns_as_much():
    flags = {"lr": 0.02, "augment": False}
    serial = results(1, NETS["ghost"], 60, dtype="float64", **flags)[0]
    losses, weights, _ = results(2, NETS["ghost"], 60, dtype="float64", sync="delayed", **flags)[0]
    assert np.abs(weights - serial[1]).max() > 1e-3
    assert losses[0] == pytest.approx(serial[0][0]) and losses[1] > serial[0][1]  # its first update comes later
    assert np.mean(losses[-10:]) < min(1.2 * np.mean(serial[0][-10:]), 0.2 * losses[0])


def test_looking_changes_nothing():
    for flags in ({}, {"clip_norm": 0.5}):
        seen, unseen = (
            results(3, DROPOUT_NET, 10, dtype="float64", sync="delayed", settle_at=looks, **flags)[0][1]
            for looks in ((1, 7, 8), ())
        )
        assert seen.tobytes() == unseen.tobytes()
