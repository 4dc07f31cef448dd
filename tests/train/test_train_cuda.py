"""Training by the kernels of a GPU, run on the host: the loop, recorded passes and staged gradients, over the runtime
that refuses what a device would refuse."""

import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, losses

from ringtrain.transport.device.wrapper import STAGED, DeviceTransport
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]

MLP = """
summary = "for tests"
input = { shape = [8, 8, 1], scale = 0.0625 }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = 24 },
  { name = "relu1", kind = "ReLU" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc2", kind = "Linear", units = 10 },
]
[recipe]
batch = 30
lr = 0.1
"""
# Convolution, batch normalisation, maximum pooling and dropout.
CONVOLUTION = BATCH_NORM_NET


def on_cuda(transport, model_text, iterations, precision="float32", **flags):
    ops = cuda_ops("float32", precision)
    transport = DeviceTransport(transport, ops.runtime, STAGED)
    options = {"device": "cuda", "precision": precision, **flags}
    return losses(transport, model_text, iterations, ops=ops, **options), ops.describe()


@pytest.mark.parametrize("model_text", [MLP, CONVOLUTION], ids=["mlp", "convolution"])
def test_the_loss_is_that_of_the_host(model_text):
    ((host, _, weights),) = everywhere(1, lambda t: losses(t, model_text, 20))
    (((device, _, device_weights), words),) = everywhere(1, lambda t: on_cuda(t, model_text, 20))
    assert device == pytest.approx(host, abs=1e-4)
    assert device_weights == pytest.approx(weights, abs=1e-4)
    assert "segments recorded" in words and "run anew" not in words


def test_two_ranks_agree_and_learn_what_the_host_learns():
    flags = {"optimizer": "nesterov", "accumulate": 2, "bucket_bytes": 1, "overlap": "forward"}
    host = everywhere(2, lambda t: losses(t, DROPOUT_NET, 6, **flags))[0][0]
    ranks = everywhere(2, lambda t: on_cuda(t, DROPOUT_NET, 6, **flags))
    assert ranks[0][0][0] == ranks[1][0][0]
    assert ranks[0][0][0] == pytest.approx(host, abs=1e-4)


@pytest.mark.parametrize(("precision", "near"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_activations_of_16_bits(precision, near):
    if precision == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    host = everywhere(1, lambda t: losses(t, CONVOLUTION, 8))[0][0]
    (((device, _, weights), _),) = everywhere(1, lambda t: on_cuda(t, CONVOLUTION, 8, precision))
    assert device == pytest.approx(host, abs=near)
    assert weights.dtype == "float32"
