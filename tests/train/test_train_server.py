"""Training by servers is training on one rank."""

import pytest
from small_runs import DROPOUT_NET, everywhere
from strategies import NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def served(size, net=DROPOUT_NET, iterations=50, nodes=1, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="server", **flags), nodes=nodes)


def serial(net=DROPOUT_NET, iterations=50, **flags):
    return everywhere(1, lambda t: trained(t, net, iterations, dtype="float64", **flags))[0][1]


@pytest.fixture(scope="module")
def alone():
    return {net: serial(text) for net, text in NETS.items()}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("size", "flags"),
    [
        (1, {}),
        (2, {"servers": 2, "overlap": "forward"}),
        (3, {"servers": 2}),
        (4, {"servers": 1, "overlap": "none"}),
        (4, {"servers": 2, "server_levels": 2, "nodes": 2, "overlap": "forward"}),
    ],
)
def test_weights_are_those_of_one_rank(alone, net, size, flags):
    found = served(size, NETS[net], bucket_bytes=2000, **flags)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, alone[net]) <= 1e-12


@pytest.mark.parametrize(
    "flags", [{"optimizer": "adamw", "lr": 0.002}, {"optimizer": "nesterov", "clip_norm": 0.5, "accumulate": 3}]
)
def test_optimizers_clipping_and_micro_batches(flags):
    assert apart(served(3, servers=2, overlap="forward", **flags), serial(**flags)) <= 1e-12


@pytest.mark.parametrize(("size", "servers"), [(1, 1), (2, 2)])
def test_it_goes_on_at_another_number_of_ranks_and_servers(size, servers):
    flags = {"optimizer": "adamw", "lr": 0.002}
    begun = served(3, iterations=20, servers=3, **flags)[0][2]
    found = served(size, iterations=50, start=20, found=begun, servers=servers, **flags)
    assert apart(found, serial(**flags)) <= 1e-12


@pytest.mark.parametrize("flags", [{"overlap": "forward"}, {"clip_norm": 0.5, "server_levels": 2}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="server", servers=2, settle_at=(3,), **flags)

    host, device = (everywhere(4, lambda t, d=d: body(t, d), nodes=2) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
