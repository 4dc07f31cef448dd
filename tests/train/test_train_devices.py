"""Training on a device that is not there: the loop reads nothing early and computes nothing outside of ops."""

import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, losses, run_of

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def on_device(transport, model_text, iterations, **flags):
    ops = FakeDeviceOps(flags.get("dtype", "float32"))
    return losses(DeviceTransport(transport, ops), model_text, iterations, ops=ops, **flags)


@pytest.mark.parametrize("model_text", [DROPOUT_NET, BATCH_NORM_NET], ids=["dropout", "batch norm"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_training_is_that_of_the_host_bit_by_bit(size, model_text):
    host = everywhere(size, lambda t: losses(t, model_text, 12))
    device = everywhere(size, lambda t: on_device(t, model_text, 12))
    assert [found[:2] for found in device] == [found[:2] for found in host]


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer": "adamw"},
        {"optimizer": "nesterov", "clip_norm": 0.5},
        {"optimizer": "lars", "trust": 0.1},
        {"optimizer": "lamb", "lr": 0.01, "clip_norm": 1.0},
        {"accumulate": 3},
    ],
)
def test_optimizers_clipping_and_accumulation(flags):
    host = everywhere(2, lambda t: losses(t, DROPOUT_NET, 6, **flags))
    device = everywhere(2, lambda t: on_device(t, DROPOUT_NET, 6, **flags))
    assert [found[:2] for found in device] == [found[:2] for found in host]


def test_evaluation():
    def scored(transport, device: bool):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(transport, ops) if device else transport
        run, _ = run_of(transport, BATCH_NORM_NET, ops)
        return run.evaluator.score(run.data.test, 100)

    assert everywhere(3, lambda t: scored(t, True)) == everywhere(3, lambda t: scored(t, False))
