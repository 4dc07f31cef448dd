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
@pytest.mark.parametrize("flags", [{"fc": "pipeline"}, {"sync": "sharded"}], ids=str)
def test_training_over_staged_messages_is_that_of_the_host(flags):
    host = everywhere(2, lambda t: trained(t, DROPOUT_NET, 4, **flags))
    device = everywhere(2, lambda t: on_device(t, **flags))
    for (_, expected, _), (_, weights, _) in zip(host, device, strict=True):
        assert np.abs(weights - expected).max() < (1e-5 if REAL else 1e-6)  # a device fuses a·b + c
