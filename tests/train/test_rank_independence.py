"""The same seed gives the same run at any number of ranks: the promise that the rest hangs on."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, ITERATIONS, LAYERWISE, OVER_RANKS, everywhere, lasting, losses


def relative(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    return np.max(np.abs(found - expected) / np.abs(expected))


@pytest.fixture(scope="module")
def serial():
    return everywhere(1, lambda t: losses(t, DROPOUT_NET, OVER_RANKS, dtype="float64"))[0]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_float64_losses_are_those_of_one_rank(serial, size):
    """Over two epochs, so tails of 27 are among them."""
    ranks = everywhere(size, lambda t: losses(t, DROPOUT_NET, OVER_RANKS, dtype="float64"))
    assert len({digest for _, digest, _ in ranks}) == 1
    assert relative(ranks[0][0], serial[0]) <= 1e-9
    assert np.max(np.abs(ranks[0][2] - serial[2])) <= 1e-12 * np.max(np.abs(serial[2]))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_float32_losses_agree_for_the_first_iterations(size):
    one = everywhere(1, lambda t: losses(t, DROPOUT_NET, 20))[0]
    ranks = everywhere(size, lambda t: losses(t, DROPOUT_NET, 20))
    assert relative(ranks[0][0], one[0]) <= 1e-4


@pytest.mark.parametrize(
    "flags",
    [
        {"accumulate": 3},
        {"algorithm": "star"},
        {"algorithm": "circulant"},
        {"algorithm": "hierarchical:sliced:tree"},
        {"bucket_bytes": 64, "segment_bytes": 8},
    ],
)
def test_how_it_is_cut_and_exchanged_does_not_matter(serial, flags):
    iterations = lasting(15, 60)
    ranks = everywhere(3, lambda t: losses(t, DROPOUT_NET, iterations, dtype="float64", **flags))
    assert relative(ranks[0][0], serial[0][:iterations]) <= 1e-9


def test_ghost_batch_norm_is_the_same_at_any_number_of_ranks():
    def run(t):
        return losses(t, BATCH_NORM_NET, lasting(22, 60), dtype="float64")

    one = everywhere(1, run)[0]
    for size in (2, 3, 4):
        ranks = everywhere(size, run)
        assert relative(ranks[0][0], one[0]) <= 1e-9
        assert np.max(np.abs(ranks[0][2] - one[2])) <= 1e-11  # running statistics are among the weights


def test_a_rank_without_examples_takes_part():
    """5 does not divide: batches of 6 examples, whose tail of 297 = 49·6 + 3 leaves two of five ranks without."""
    one = everywhere(1, lambda t: losses(t, DROPOUT_NET, 51, dtype="float64", batch=6))[0]
    ranks = everywhere(5, lambda t: losses(t, DROPOUT_NET, 51, dtype="float64", batch=6))
    assert relative(ranks[4][0], one[0]) <= 1e-9


@pytest.mark.parametrize("flags", LAYERWISE.values(), ids=list(LAYERWISE))
def test_layerwise_optimizers_are_those_of_one_rank(flags):
    """Buckets of at least 64 bytes hold one parameter or several; the norms are those of parameters all the same."""

    def run(t, **more):
        return losses(t, DROPOUT_NET, ITERATIONS, dtype="float64", **flags, **more)

    one = everywhere(1, run)[0]
    for size, bucket_bytes in ((2, 64), (3, 4 << 20), (4, 64)):
        ranks = everywhere(size, lambda t, held=bucket_bytes: run(t, bucket_bytes=held))
        assert len({digest for _, digest, _ in ranks}) == 1
        assert relative(ranks[0][0], one[0]) <= 1e-9
        assert np.max(np.abs(ranks[0][2] - one[2])) <= 1e-12 * np.max(np.abs(one[2]))


def test_another_seed_is_another_run(serial):
    other = everywhere(1, lambda t: losses(t, DROPOUT_NET, 3, dtype="float64", seed=1))[0]
    assert relative(other[0], serial[0][:3]) > 1e-3


ROUNDED = {"float16": 2**-11, "bfloat16": 2**-8}  # a number of that type, relative, at most


@pytest.mark.parametrize("wire", ROUNDED)
@pytest.mark.parametrize("net", [DROPOUT_NET, BATCH_NORM_NET], ids=["dropout", "batch-norm"])
def test_replicas_stay_equal_over_a_wire_that_rounds(net, wire):
    """Not the run of one rank, but within a rounding of it for 20 iterations."""
    one = everywhere(1, lambda t: losses(t, net, 20))[0]
    ranks = everywhere(3, lambda t: losses(t, net, 20, wire=wire, algorithm="sliced"))
    assert len({digest for _, digest, _ in ranks}) == 1
    assert 0.005 * ROUNDED[wire] < relative(ranks[0][0], one[0]) <= ROUNDED[wire]
