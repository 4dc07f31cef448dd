"""Gradients that travel during the next forward pass, where ranks have no examples."""

import numpy as np
import pytest
from small_runs import NETS, results

SYNCS = {"allreduce": {}, "sharded": {}, "averaging": {"average_from": 1000}}


@pytest.mark.parametrize("sync", SYNCS)
def test_ranks_without_examples(sync):
    """Batches of 74, with a tail of one example: three of four ranks have none."""
    flags = {"sync": sync, "bucket_bytes": 500, "batch": 74, "start": 3, "dtype": "float64", **SYNCS[sync]}
    forward, backward = (
        results(4, NETS["ghost"], 7, overlap=overlap, **flags)[0] for overlap in ("forward", "backward")
    )
    np.testing.assert_array_equal(forward[1], backward[1])
