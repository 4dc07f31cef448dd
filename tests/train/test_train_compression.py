"""What is compression's own: exact where nothing is left out, and residuals that go on."""

from copy import deepcopy

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, apart, results

TOP_K = {"compress": "top-k", "compress_ratio": 0.05}
POWER = {"compress": "powersgd", "compress_rank": 2}


def compressed(size, iterations=20, **flags):
    return results(size, DROPOUT_NET, iterations, dtype="float64", **flags)


def serial(iterations=20, **flags):
    return results(1, DROPOUT_NET, iterations, dtype="float64", **flags)[0]


@pytest.mark.parametrize("method", [TOP_K, POWER])
def test_the_residual_is_of_what_was_left_out(method):
    """Biases and statistics go whole."""
    begun = results(3, BATCH_NORM_NET, 10, dtype="float64", lr=0.01, **method)[0][2]
    assert np.abs(begun.optimizer["residual"]["fc.weight"]).max() > 0
    assert not any(begun.optimizer["residual"][name].any() for name in ("fc.bias", "norm1.mean"))


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"optimizer": "lamb", "lr": 0.01}])
def test_all_elements_are_all_reduce(flags):
    ranks = compressed(3, 20, bucket_bytes=2000, compress="top-k", compress_ratio=1.0, **flags)
    assert apart(ranks, serial(20, **flags)[1]) <= 1e-12


def test_factors_of_full_rank_are_all_reduce():
    """fc's gradient is [96, 10], and its columns add up to 0: factors of rank 9 have all of it. conv1 goes whole."""
    assert apart(compressed(3, compress="powersgd", compress_rank=9), serial()[1]) <= 1e-10


def test_gradients_go_whole_up_to_then():
    want = serial(9)[1]
    for method in (TOP_K, POWER):
        assert apart(compressed(2, 9, compress_from=9, **method), want) <= 1e-12
        assert apart(compressed(2, 9, compress_from=8, **method), want) > 1e-4


def test_largest_elements_go_on_at_another_number_of_ranks():
    """Where nothing is left out later, all that was left out before has been learnt from."""
    begun = compressed(3, 10, **TOP_K)[0][2]
    want = compressed(1, start=10, checkpoint=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
    for size in (2, 4):
        ranks = compressed(size, start=10, checkpoint=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
        assert apart(ranks, want[0][1]) <= 1e-12
    begun = deepcopy(begun)
    begun.optimizer["residual"] = {name: 0 * x for name, x in begun.optimizer["residual"].items()}
    assert apart(compressed(2, start=10, checkpoint=begun, iterations=20, **TOP_K), want[0][1]) > 1e-4


def test_a_run_of_whole_gradients_goes_on_compressed():
    begun = serial(5)[2]
    ranks = compressed(2, start=5, checkpoint=begun, iterations=10, compress="top-k", compress_ratio=1.0)
    assert apart(ranks, serial(10)[1]) <= 1e-12
