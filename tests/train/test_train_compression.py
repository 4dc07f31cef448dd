"""Training on compressed gradients: exact where nothing is left out, resumed without loss, on a device."""

import numpy as np
import pytest
from small_runs import everywhere
from strategies import NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport

TOP_K = {"compress": "top-k", "compress_ratio": 0.05}
POWER = {"compress": "powersgd", "compress_rank": 2}


def compressed(size, iterations=30, net="dropout", **flags):
    return everywhere(size, lambda t: trained(t, NETS[net], iterations, dtype="float64", **flags))


def serial(iterations=30, **flags):
    return everywhere(1, lambda t: trained(t, NETS["dropout"], iterations, dtype="float64", **flags))[0]


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"optimizer": "lamb", "lr": 0.01}])
def test_all_elements_are_all_reduce(flags):
    found = compressed(3, 20, bucket_bytes=2000, compress="top-k", compress_ratio=1.0, **flags)
    assert apart(found, serial(20, **flags)[1]) <= 1e-12


def test_factors_of_full_rank_are_all_reduce():
    """fc's gradient is [96, 10], and its columns add up to 0: factors of rank 9 have all of it. conv1 goes whole."""
    assert apart(compressed(3, compress="powersgd", compress_rank=9), serial()[1]) <= 1e-10


def test_gradients_go_whole_up_to_then():
    want = serial(9)[1]
    for method in (TOP_K, POWER):
        assert apart(compressed(2, 9, compress_from=9, **method), want) <= 1e-12
        assert apart(compressed(2, 9, compress_from=8, **method), want) > 1e-4


@pytest.mark.parametrize("sync", ["allreduce", "delayed"])
@pytest.mark.parametrize("method", [TOP_K, POWER])
def test_it_learns(method, sync):
    """Down to a third of the first loss, with ghost batch norm, whose statistics go whole; weights are equal on all
    ranks."""
    found = compressed(3, 80, "ghost", lr=0.02, augment=False, sync=sync, **method)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    losses = found[0][0]
    assert np.mean(losses[-10:]) < losses[0] / 3


@pytest.mark.parametrize("sync", ["allreduce", "delayed"])
@pytest.mark.parametrize("method", [TOP_K, POWER])
def test_it_goes_on_exactly(method, sync):
    """As the run that wrote the checkpoint and went on itself, bit by bit."""
    flags = {**method, "sync": sync, "net": "ghost", "lr": 0.01}
    whole = compressed(3, 20, settle_at=(10,), **flags)
    begun = compressed(3, 10, **flags)[0][2]
    assert np.abs(begun.optimizer["residual"]["fc.weight"]).max() > 0
    assert not any(begun.optimizer["residual"][name].any() for name in ("fc.bias", "norm1.mean"))
    found = compressed(3, start=10, found=begun, iterations=20, **flags)
    assert [w.tobytes() for _, w, _ in found] == [w.tobytes() for _, w, _ in whole]
    assert found[0][0] == whole[0][0][10:]


def test_factors_go_on_alike_at_another_number_of_ranks_and_whoever_looks():
    """All that is learnt from is the sum over ranks, gradients and residuals."""
    whole = compressed(3, 20, **POWER)
    assert apart(compressed(3, 20, settle_at=(3, 10), **POWER), whole[0][1]) <= 1e-9
    begun = compressed(3, 10, **POWER)[0][2]
    for size in (1, 2):
        assert apart(compressed(size, start=10, found=begun, iterations=20, **POWER), whole[0][1]) <= 1e-9


def test_largest_elements_go_on_at_another_number_of_ranks():
    """Where nothing is left out later, all that was left out before has been learnt from."""
    begun = compressed(3, 10, **TOP_K)[0][2]
    want = compressed(1, start=10, found=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
    for size in (2, 4):
        found = compressed(size, start=10, found=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
        assert apart(found, want[0][1]) <= 1e-12
    begun.optimizer["residual"] = {name: 0 * x for name, x in begun.optimizer["residual"].items()}
    assert apart(compressed(2, start=10, found=begun, iterations=20, **TOP_K), want[0][1]) > 1e-4


def test_a_run_of_whole_gradients_goes_on_compressed():
    begun = serial(5)[2]
    found = compressed(2, start=5, found=begun, iterations=10, compress="top-k", compress_ratio=1.0)
    assert apart(found, serial(10)[1]) <= 1e-12


@pytest.mark.parametrize("flags", [{**TOP_K, "compress_from": 2}, {**POWER, "clip_norm": 0.5}])
@pytest.mark.parametrize("sync", ["allreduce", "delayed"])
def test_on_a_device_that_computes_later(flags, sync):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync=sync, settle_at=(3,), algorithm="ring", **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
