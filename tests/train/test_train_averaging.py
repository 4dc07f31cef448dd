"""Weights that are averaged: each iteration, which is exact, and now and then, which is not."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, ITERATIONS, everywhere
from strategies import LAYERWISE, NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport

OUTER = {"outer_momentum": 0.9, "outer_lr": 0.7}


def averaging(size, net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="averaging", **flags))


def serial(net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(1, lambda t: trained(t, net, iterations, dtype="float64", **flags))[0][1]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_iteration_is_exact_with_uneven_parts_and_tails(net, size):
    """Iteration 10 has 27 examples in place of 30: of four ranks with ghosts of 8, two then have 8, one 3."""
    found = averaging(size, NETS[net], average_every=1, bucket_bytes=2000)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, serial(NETS[net])) <= 1e-12


def test_nesterov_and_micro_batches():
    flags = {"optimizer": "nesterov", "accumulate": 3}
    assert apart(averaging(3, average_every=1, **flags), serial(**flags)) <= 1e-12


def test_a_rank_without_examples_weighs_nothing():
    """Batches of 5 on 4 ranks, with a tail of 2 that two of them have nothing of."""
    flags = {"batch": 5, "iterations": 62, "lr": 0.01, "net": BATCH_NORM_NET.replace("ghost = 8", "ghost = 1")}
    assert apart(averaging(4, average_every=1, **flags), serial(**flags)) <= 1e-11


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ({"average_momentum": "keep"}, 0.15),
        ({"average_momentum": "average"}, 0.15),
        ({"average_momentum": "reset"}, 0.3),  # of little use where periods are short: momentum never builds up
        ({"outer_momentum": 0.5, "outer_lr": 0.7}, 0.15),
    ],
)
def test_now_and_then_is_not_serial_and_learns(flags, share):
    """Down to a share of the first loss; that of serial training is 0.1."""
    flags = {**flags, "lr": 0.02, "augment": False, "iterations": 80, "net": BATCH_NORM_NET}
    found = averaging(3, average_every=4, **flags)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert np.mean(found[0][0][-10:]) < share * found[0][0][0]
    assert not np.allclose(found[0][1], averaging(1, average_every=4, **flags)[0][1], rtol=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "flags",
    [{"average_momentum": "keep"}, {"average_momentum": "reset"}, {"average_momentum": "average"}, OUTER],
)
def test_it_goes_on_exactly_in_the_middle_of_a_period(flags, optimizer):
    """As the run that wrote the checkpoint and went on itself."""
    flags = {**flags, "average_every": 4, "optimizer": optimizer, "lr": 0.002, "net": BATCH_NORM_NET}
    whole = averaging(3, iterations=20, settle_at=(10,), **flags)
    begun = averaging(3, iterations=10, **flags)[0][2]
    found = averaging(3, start=10, found=begun, iterations=20, **flags)
    assert [w.tobytes() for _, w, _ in found] == [w.tobytes() for _, w, _ in whole]
    assert averaging(2, start=10, found=begun, iterations=20, **flags)[0][0][-1] == pytest.approx(
        whole[0][0][-1], rel=0.3
    )


def test_layerwise_optimizers_are_each_ranks_own():
    """Serial on one rank, and on several one state for all."""
    flags = {"average_every": 3, **LAYERWISE["lars"]}
    assert apart(averaging(1, **flags), serial(**LAYERWISE["lars"])) <= 1e-12
    whole = averaging(3, iterations=20, settle_at=(10,), **flags)
    begun = averaging(3, iterations=10, **flags)[0][2]
    found = averaging(3, start=10, found=begun, iterations=20, **flags)
    assert {w.tobytes() for _, w, _ in found} == {w.tobytes() for _, w, _ in whole}
    assert apart(whole, serial(iterations=20, **LAYERWISE["lars"])) > 1e-4


def test_post_local_is_all_reduce_up_to_then():
    flags = {"average_every": 4, "average_from": 12}
    found = averaging(3, **flags)
    assert apart(averaging(3, iterations=12, **flags), serial(iterations=12)) <= 1e-12
    begun = everywhere(2, lambda t: trained(t, DROPOUT_NET, 12, dtype="float64"))[0][2]
    assert apart(averaging(3, start=12, found=begun, **flags), found[0][1]) <= 1e-12
    assert apart(found, serial()) > 1e-3


@pytest.mark.parametrize("flags", [{"clip_norm": 0.5, "average_from": 2}, {"average_momentum": "reset"}, OUTER])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(
            transport, BATCH_NORM_NET, 7, ops=ops, sync="averaging", average_every=2, settle_at=(3,), **flags
        )

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
