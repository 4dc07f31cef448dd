"""Networks run unchanged on other operations: compiled ones, and a device whose memory the host cannot read."""

import numpy as np
import pytest
from nn_support import Net, reference
from test_nn_graph import NETS, SHAPE

from ringtrain.ops.catalogue import make_ops
from tests.fakes.fake_gpu import FakeGpuOps

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
