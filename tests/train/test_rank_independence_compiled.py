"""The kernels that train by default, held to what the plain ones are: the same run at any number of ranks."""

import numpy as np
import pytest
from small_runs import (
    BATCH_NORM_NET,
    DROPOUT_NET,
    ITERATIONS,
    LAYERWISE,
    OVER_RANKS,
    apart,
    everywhere,
    losses,
    trained,
)

from ringtrain.ops.catalogue import make_ops

NETS = {"dropout": (DROPOUT_NET, 1e-12), "ghost": (BATCH_NORM_NET, 1e-11)}  # and how far weights may be apart
# Ways of which an iteration is one of serial SGD, and what the serial run is given too. Pipeline: two ranks and one.
SHARDED = {"sync": "sharded"}
EXACT = {
    "sharded": (SHARDED, {}),
    "master": ({"sync": "master"}, {}),
    "server": ({"sync": "server", "overlap": "forward"}, {}),
    "averaging": ({"sync": "averaging", "average_every": 1}, {}),
    "hybrid": ({"fc": "hybrid"}, {}),
    "pipeline": ({"fc": "pipeline", "accumulate": 2}, {}),
    "forward": ({"overlap": "forward", "bucket_bytes": 64}, {}),
    "sharded, clipped": (SHARDED, {"clip_norm": 0.5}),
    **{f"sharded, {name}": (SHARDED, flags) for name, flags in LAYERWISE.items()},
}


def compiled():
    """For each rank its own: they keep scratch memory."""
    return make_ops("cpu", "float64")


@pytest.mark.parametrize("net", NETS)
def test_losses_and_weights_are_those_of_one_rank(net):
    text, bound = NETS[net]

    def run(t, **ops):
        return losses(t, text, OVER_RANKS, dtype="float64", **ops)

    one = everywhere(1, lambda t: run(t, ops=compiled()))[0]
    for size in (2, 3, 4):
        ranks = everywhere(size, lambda t: run(t, ops=compiled()))
        assert len({digest for _, digest, _ in ranks}) == 1
        assert np.max(np.abs(np.divide(ranks[0][0], one[0]) - 1)) <= 1e-9
        assert np.max(np.abs(ranks[0][2] - one[2])) <= bound * np.max(np.abs(one[2]))
    plain = everywhere(1, run)[0]
    assert np.max(np.abs(np.divide(plain[0], one[0]) - 1)) <= 1e-9


@pytest.mark.parametrize("way", EXACT)
def test_exact_ways_are_those_of_one_rank(way):
    flags, given = EXACT[way]

    def run(t, **more):
        return trained(t, DROPOUT_NET, ITERATIONS, ops=compiled(), dtype="float64", **given, **more)

    found = everywhere(3, lambda t: run(t, **flags))
    assert apart(found, everywhere(1, run)[0][1]) <= 1e-12
