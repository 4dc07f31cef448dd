"""Networks run unchanged on other operations: compiled ones, and a device whose memory the host cannot read."""

import numpy as np
import pytest
from nn_support import Net, chain, make_pass, reference
from test_nn_graph import NETS, SHAPE

from ringtrain.nn.conv_columns import Conv3D
from ringtrain.nn.layers import Linear
from ringtrain.nn.pool import AvgPool, MaxPool
from ringtrain.nn.sequence import ClassToken, FirstToken
from ringtrain.ops.catalogue import make_ops
from tests.fakes.fake_gpu import FakeGpuOps
from tests.ops.cuda_support import cuda_ops, on_device

DEVICES = {"device fake": lambda: FakeGpuOps(dtype="float64"), "cpu": lambda: make_ops("cpu", "float64")}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_the_reference(name, device):
    nodes = NETS[name]()
    expected, other = Net(nodes, SHAPE, ops=reference()), Net(nodes, SHAPE, ops=DEVICES[device]())
    assert expected.arena.hash(expected.ops) == other.arena.hash(other.ops)
    (loss, grads), (other_loss, other_grads) = expected.gradients(), other.gradients()
    assert other_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(other_grads, grads, rtol=1e-10, atol=1e-13)


@on_device
def test_pooling_and_tokens_are_those_of_the_reference():
    """A volume, whose pixels become a sequence, which is pooled too."""
    pools = MaxPool("most", 3, 2, pad=1, ceil=True), AvgPool("mean", 3, 2, pad=1)
    tokens = ClassToken("first"), AvgPool("line", 3, 2, pad=1), FirstToken("token")
    nodes = chain(Conv3D("conv", 4, 2), *pools, *tokens, Linear("last", 3))
    expected, other = (Net(nodes, (6, 7, 8, 2), ops=ops).gradients() for ops in (reference(), cuda_ops("float64")))
    assert other[0] == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(other[1], expected[1], rtol=1e-10, atol=1e-13)


@on_device
def test_weights_are_rounded_once_they_have_arrived():
    """A pass that waits for some of them computes what a pass does that has them all, at 16 bits."""

    def logits_of(waits):
        ops = cuda_ops("float32", "bfloat16")
        net = Net(chain(Linear("first", 6), Linear("second", 8), Linear("last", 3)), (5,), ops=ops)
        late = next(span for span in net.arena.spans if span.name == "second.weight")
        new = ops.from_host(np.full(late.shape, 0.3, np.float32))

        def need(span):
            if span is late:
                ops.copy(new, net.arena.weight(span))

        if not waits:
            need(late)
        ctx, x = make_pass(ops, 4, waits=waits), ops.from_host(net.x[:4].astype(ops.active))
        logits, tapes = net.graph.forward(ctx, x, need=need if waits else None)
        dlogits = ops.from_host(np.ones(logits.shape, ops.active))
        list(net.graph.backward(ctx, dlogits, tapes))
        return ops.to_host(logits), ops.to_host(net.arena.grads)

    for waiting, ready in zip(logits_of(frozenset({"second.weight"})), logits_of(frozenset()), strict=True):
        assert waiting.tobytes() == ready.tobytes()
