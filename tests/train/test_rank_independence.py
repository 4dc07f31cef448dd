"""The same run at any number of ranks, where the contract of strategies does not ask: in float32, over wires, by the
kernels that train by default."""

import numpy as np
import pytest
from small_runs import (
    BATCH_NORM_NET,
    DROPOUT_NET,
    LAYERWISE,
    NETS,
    OVER_RANKS,
    PAST_A_TAIL,
    apart,
    results,
    same_weights,
)

from tests.tiers import lasting


def relative(values, expected):
    values, expected = np.asarray(values), np.asarray(expected)
    return np.max(np.abs(values - expected) / np.abs(expected))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_float32_losses_agree_for_the_first_iterations(size):
    one, ranks = results(1, DROPOUT_NET, 20)[0], results(size, DROPOUT_NET, 20)
    assert relative(ranks[0][0], one[0]) <= 1e-4


@pytest.mark.parametrize("flags", [{"algorithm": "hierarchical:sliced:tree"}, {"bucket_bytes": 64, "segment_bytes": 8}])
def test_how_it_is_cut_and_exchanged_does_not_matter(flags):
    iterations = lasting(15, 60)
    one = results(1, DROPOUT_NET, iterations, dtype="float64")[0]
    assert relative(results(3, DROPOUT_NET, iterations, dtype="float64", **flags)[0][0], one[0]) <= 1e-9


@pytest.mark.parametrize("flags", [{}, {"sync": "sharded"}, {"sync": "averaging", "average_from": 1000}], ids=str)
def test_ranks_without_examples_where_gradients_travel_during_the_next_forward_pass(flags):
    """Batches of 74, with a tail of one example: three of four ranks have none."""
    flags = {"bucket_bytes": 500, "batch": 74, "start": 3, "dtype": "float64", **flags}
    forward, backward = (results(4, NETS["ghost"], 7, overlap=way, **flags)[0] for way in ("forward", "backward"))
    np.testing.assert_array_equal(forward[1], backward[1])


ROUNDED = {"float16": 2**-11, "bfloat16": 2**-8}  # a number of that type, relative, at most


@pytest.mark.parametrize("wire", ROUNDED)
@pytest.mark.parametrize("net", [DROPOUT_NET, BATCH_NORM_NET], ids=["dropout", "batch-norm"])
def test_replicas_stay_equal_over_a_wire_that_rounds(net, wire):
    """Not the run of one rank, but within a rounding of it for 20 iterations."""
    one, ranks = results(1, net, 20)[0], results(3, net, 20, wire=wire, algorithm="sliced")
    assert same_weights(ranks)
    assert 0.005 * ROUNDED[wire] < relative(ranks[0][0], one[0]) <= ROUNDED[wire]


# ── by compiled kernels ───────────────────────────────────────────────────────────────────────────────────────────────
BOUNDS = {"dropout": 1e-12, "ghost": 1e-11}  # how far weights may be apart
# Strategies of which an iteration is one of serial SGD, and flags of the serial run too. Pipeline: two ranks and one.
SHARDED = {"sync": "sharded"}
MUON = {"optimizer": "muon", "lr": 0.01, "clip_norm": 0.5, "ema": 0.9}
EXACT = {
    "sharded": (SHARDED, {}),
    "master": ({"sync": "master"}, {}),
    "server": ({"sync": "server", "overlap": "forward"}, {}),
    "averaging": ({"sync": "averaging", "average_every": 1}, {}),
    "hybrid": ({"fc": "hybrid"}, {}),
    "pipeline": ({"fc": "pipeline", "accumulate": 2}, {}),
    "forward": ({"overlap": "forward", "bucket_bytes": 64}, {}),
    "sharded, clipped": (SHARDED, {"clip_norm": 0.5}),
    **{f"sharded, {name}": (SHARDED, LAYERWISE[name]) for name in ("lars", "clipped lamb")},
    **{
        f"{name}, muon": (flags, MUON)
        for name, flags in (("allreduce", {}), ("server", {"sync": "server", "servers": 2}))
    },
}


def compiled(size, net, iterations, **flags):
    return results(size, net, iterations, ops="cpu", dtype="float64", **flags)


@pytest.mark.parametrize("net", BOUNDS)
def test_losses_and_weights_are_those_of_one_rank(net):
    one = compiled(1, NETS[net], OVER_RANKS)[0]
    for size in (2, 3, 4):
        ranks = compiled(size, NETS[net], OVER_RANKS)
        assert same_weights(ranks) and relative(ranks[0][0], one[0]) <= 1e-9
        assert apart(ranks, one[1]) <= BOUNDS[net]
    assert relative(results(1, NETS[net], OVER_RANKS, dtype="float64")[0][0], one[0]) <= 1e-9


@pytest.mark.parametrize("way", EXACT)
def test_exact_strategies_are_one_rank(way):
    flags, common = EXACT[way]
    ranks = compiled(3, DROPOUT_NET, PAST_A_TAIL, **common, **flags)
    assert apart(ranks, compiled(1, DROPOUT_NET, PAST_A_TAIL, **common)[0][1]) <= 1e-12
