"""Training with a slice of the optimizer's state on each rank is training with all of it."""

import pytest
from small_runs import DROPOUT_NET, ITERATIONS, everywhere
from strategies import LAYERWISE, NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def sharded(size, net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="sharded", **flags))


def serial(net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(1, lambda t: trained(t, net, iterations, dtype="float64", **flags))[0][1]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_weights_are_those_of_one_rank(net, size):
    found = sharded(size, NETS[net], bucket_bytes=2000)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, serial(NETS[net])) <= 1e-12


@pytest.mark.parametrize(
    "flags", [{"optimizer": "adamw", "lr": 0.002}, {"optimizer": "nesterov", "clip_norm": 0.5}, {"clip_norm": 0.1}]
)
def test_optimizers_and_clipping(flags):
    assert apart(sharded(3, **flags), serial(**flags)) <= 1e-12


@pytest.mark.parametrize("optimizer", LAYERWISE)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_norms_are_of_whole_parameters_wherever_slices_cut_them(optimizer, size):
    flags = LAYERWISE[optimizer]
    found = sharded(size, NETS["ghost"], bucket_bytes=2000, **flags)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, serial(NETS["ghost"], **flags)) <= 1e-12


@pytest.mark.parametrize("flags", [{"optimizer": "adamw", "lr": 0.002}, *LAYERWISE.values()])
@pytest.mark.parametrize("size", [1, 2])
def test_it_goes_on_at_another_number_of_ranks(size, flags):
    begun = sharded(3, iterations=8, **flags)[0][2]
    found = sharded(size, iterations=ITERATIONS, start=8, found=begun, **flags)
    assert apart(found, serial(**flags)) <= 1e-12


def test_a_run_of_all_reduce_goes_on_sharded_and_back():
    begun = everywhere(2, lambda t: trained(t, DROPOUT_NET, 8, dtype="float64"))[0][2]
    middle = sharded(4, iterations=15, start=8, found=begun)[0][2]
    found = everywhere(3, lambda t: trained(t, DROPOUT_NET, ITERATIONS, 15, middle, dtype="float64"))
    assert apart(found, serial()) <= 1e-12


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, LAYERWISE["clipped lamb"]])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="sharded", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
