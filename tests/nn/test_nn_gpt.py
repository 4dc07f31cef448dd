"""models/gpt.toml in float64: its slopes, and what its mask hides. Beside torch: test_nn_transformer_torch.py."""

import numpy as np
from nn_support import Net, bound_arena, make_pass, windows

from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops


def test_slopes_along_random_directions():
    net = Net(spec.load_model("gpt").nodes, (128,), count=1, ops=make_ops("cpu", "float64"))
    net.x, net.labels = windows(1)
    net.labels[0, -3:] = -1
    assert net.check_gradients(directions=2) < 1e-6


def test_a_later_byte_changes_no_earlier_output():
    graph, ops = spec.load_model("gpt").graph(), make_ops("cpu", "float64")
    bound_arena(graph, ops, 1)
    (x, _), at = windows(1), 77
    both = np.concatenate([x, x])
    both[1, at] = 255 - both[1, at]
    outputs, _ = graph.forward(make_pass(ops, 2, training=False), ops.from_host(both))
    one, other = ops.to_host(outputs)
    assert np.array_equal(one[:at], other[:at])
    assert (one[at:] != other[at:]).any(axis=1).all()
