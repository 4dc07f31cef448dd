"""Double buffering: the same at any number of ranks, resumed in the middle or not, and not what serial SGD is."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, ITERATIONS, everywhere
from strategies import LAYERWISE, NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def delayed(size, net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="delayed", **flags))


@pytest.mark.parametrize("net", NETS)
def test_weights_do_not_depend_on_the_number_of_ranks(net):
    alone = delayed(1, NETS[net])
    for size in (2, 3, 4):
        found = delayed(size, NETS[net], bucket_bytes=2000)
        assert len({weights.tobytes() for _, weights, _ in found}) == 1
        assert apart(found, alone[0][1]) <= 1e-12


@pytest.mark.parametrize("optimizer", LAYERWISE)
def test_layerwise_optimizers_do_not_depend_on_the_number_of_ranks(optimizer):
    flags = LAYERWISE[optimizer]
    whole = delayed(1, iterations=ITERATIONS, **flags)[0][1]
    begun = delayed(2, iterations=13, bucket_bytes=2000, **flags)[0][2]
    for size in (2, 3):
        found = delayed(size, start=13, found=begun, iterations=ITERATIONS, bucket_bytes=2000, **flags)
        assert apart(found, whole) <= 1e-12


def test_it_is_not_serial_and_learns_as_much():
    flags = {"lr": 0.02, "augment": False}
    serial = everywhere(1, lambda t: trained(t, NETS["ghost"], 60, dtype="float64", **flags))[0]
    losses, weights, _ = delayed(2, NETS["ghost"], 60, **flags)[0]
    assert np.abs(weights - serial[1]).max() > 1e-3
    assert losses[0] == pytest.approx(serial[0][0]) and losses[1] > serial[0][1]  # its first update comes later
    assert np.mean(losses[-10:]) < min(1.2 * np.mean(serial[0][-10:]), 0.2 * losses[0])


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"optimizer": "adamw", "lr": 0.002}])
def test_it_goes_on_exactly_and_nobody_who_looks_changes_it(flags):
    whole = delayed(3, iterations=ITERATIONS, **flags)
    looked_at = delayed(3, iterations=ITERATIONS, settle_at=(1, 7, 8), **flags)
    assert looked_at[0][1].tobytes() == whole[0][1].tobytes()
    begun = delayed(3, iterations=13, **flags)[0][2]
    assert delayed(3, start=13, found=begun, iterations=ITERATIONS, **flags)[2][1].tobytes() == whole[0][1].tobytes()
    assert apart(delayed(2, start=13, found=begun, iterations=ITERATIONS, **flags), whole[0][1]) <= 1e-12


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="delayed", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
