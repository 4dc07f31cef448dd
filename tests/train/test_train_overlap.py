"""Whenever gradients travel, training is that of one rank; between two passes the state is an iteration's."""

import numpy as np
import pytest
from small_runs import ITERATIONS, everywhere
from strategies import NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport

SYNCS = {"allreduce": {}, "sharded": {}, "averaging": {"average_from": 1000}}


@pytest.fixture(scope="module", params=NETS)
def net(request):
    """A net, and its weights after training on one rank."""
    text = NETS[request.param]
    return text, everywhere(1, lambda t: trained(t, text, ITERATIONS, dtype="float64"))[0][1]


@pytest.mark.parametrize("overlap", ["none", "forward"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_weights_are_those_of_one_rank(net, overlap, size):
    """Over an epoch's end; somebody looks in the middle."""
    text, want = net
    for sync, more in SYNCS.items() if size == 3 else (("allreduce", {}),):
        flags = {"sync": sync, "overlap": overlap, "bucket_bytes": 2000, **more}
        found = everywhere(
            size, lambda t, f=flags: trained(t, text, ITERATIONS, dtype="float64", settle_at=(7, 8), **f)
        )
        assert len({weights.tobytes() for _, weights, _ in found}) == 1
        assert apart(found, want) <= 1e-12, sync


@pytest.mark.parametrize("sync", SYNCS)
def test_ranks_without_examples(sync):
    """15 ghost batches of 2 in a batch, and 14 in a tail of 27: rank 14 of 15 has none."""
    net = NETS["ghost"].replace("ghost = 8", "ghost = 2")
    flags = {"sync": sync, "bucket_bytes": 500, **SYNCS[sync]}

    def run(overlap):
        return everywhere(15, lambda t: trained(t, net, 11, start=8, dtype="float64", overlap=overlap, **flags))[0]

    np.testing.assert_array_equal(run("forward")[1], run("backward")[1])


@pytest.mark.parametrize("flags", [{}, {"accumulate": 3}, {"sync": "sharded", "clip_norm": 0.5}, {"clip_norm": 0.5}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, overlap="forward", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
