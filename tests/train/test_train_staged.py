"""Training where gradients and activations lie in the memory of devices and are staged between them in small pieces: on
kernels of a GPU that run on the host, against training on the host."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, everywhere, trained

from ringtrain.ops.cuda import CudaOps
from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from tests.ops.cuda_support import REAL, device_runtime, needs_compiler


def on_device(transport, **flags):
    runtime = device_runtime()
    staged = DeviceTransport(transport, runtime, STAGED, segment_bytes=256)
    return trained(staged, DROPOUT_NET, 4, ops=CudaOps(runtime, "float32", "float32"), **flags)


@pytest.mark.device
@needs_compiler
@pytest.mark.parametrize("flags", [{"fc": "pipeline"}, {"fc": "pipeline", "fc_ranks": 2}, {"sync": "sharded"}], ids=str)
def test_training_over_staged_messages_is_that_of_the_host(flags):
    ranks = 1 + flags.get("fc_ranks", 1)
    host = everywhere(ranks, lambda t: trained(t, DROPOUT_NET, 4, **flags))
    device = everywhere(ranks, lambda t: on_device(t, **flags))
    whole = [(expected, weights) for (_, expected, _), (_, weights, _) in zip(host, device, strict=True)]
    assert whole[0][1] is not None
    for expected, weights in whole[: 1 if "fc" in flags else 2]:
        assert np.abs(weights - expected).max() < (1e-5 if REAL else 1e-6)  # a device fuses a·b + c
