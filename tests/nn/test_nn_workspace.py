"""Activations that share memory, and those that are computed again, change no bit of a gradient."""

import numpy as np
import pytest

from ringtrain.memory.workspace import Workspace
from ringtrain.nn import spec
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.layers import Flatten, Linear
from ringtrain.ops.catalogue import make_ops
from tests.nn.nn_support import Net, chain, make_pass
from tests.nn.test_nn_graph import NETS


class Apart(Workspace):
    """No two arrays share memory."""

    def shared(self, name, shape):
        return self(f"{self._kind} {name}", shape)


class Poisoned(Workspace):
    """What is not kept is overwritten at once."""

    def keep(self, arrays):
        super().keep(arrays)
        for place, slot in enumerate(self._slots):
            if self.planning and place not in self._used:
                self._ops.fill(slot, np.nan)


def passes(net, space, recompute):
    """Gradients and logits of several passes in one workspace: whole ones, a tail, an evaluation between."""
    results = []
    for rows in (slice(None), slice(None), slice(0, 2), slice(1, 5)):
        ctx = make_pass(net.ops, len(net.x[rows]), space=space, recompute=recompute)
        results.append(net.gradients(ctx=ctx, rows=rows))
        evaluation = make_pass(net.ops, len(net.x), space=space, training=False)
        logits, _ = net.graph.forward(evaluation, net.ops.from_host(net.x.astype(net.ops.dtype)))
        results.append((net.ops.to_host(logits).sum(), net.ops.to_host(logits)))
    return results


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("ops", ["cpu", "reference"])
@pytest.mark.parametrize("nodes", NETS.values())
def test_shared_memory_changes_no_bit(nodes, ops, recompute, fused):
    net = Net(nodes(), (8, 8, 3), fused=fused, ops=make_ops(ops, "float64"))
    wanted = passes(net, Apart(net.ops), recompute=False)
    for make in (Workspace, Poisoned):
        assert_same(passes(net, make(net.ops), recompute), wanted)


def assert_same(results, wanted):
    for (loss, array), (other_loss, other) in zip(results, wanted, strict=True):
        assert loss == other_loss and np.array_equal(array, other)


def chain_of(count):
    convolutions = (Conv2D(f"conv{i}", kernel=3, channels=4, pad=1) for i in range(count))
    return chain(*convolutions, Flatten("flat"), Linear("fc", units=3))


def test_shared_memory_is_less_and_recomputing_less_still():
    """Of 16 equal activations and 16 gradients: 16 and 2 more are needed, and about 4 + 4 of the roots."""
    net = Net(chain_of(16), (8, 8, 4))
    one = 5 * 8 * 8 * 4 * 8  # bytes

    def used(space, recompute=False):
        passes(net, space, recompute)
        return space.nbytes / one

    apart, shared, recomputed = used(Apart(net.ops)), used(Workspace(net.ops)), used(Workspace(net.ops), True)
    assert apart > 31 and 16 < shared < 19.5 and recomputed < 11


def test_a_larger_batch_than_the_first_gets_memory_and_the_count_of_replacements_grows():
    net = Net(chain_of(3), (6, 6, 3))
    space, ctxs = Workspace(net.ops), []
    for rows in (slice(0, 2), slice(None)):
        ctx = make_pass(net.ops, len(net.x[rows]), space=space)
        ctxs.append((net.gradients(ctx=ctx, rows=rows), space.replaced))
    assert ctxs[0][1] == 0 < ctxs[1][1]
    assert np.array_equal(ctxs[1][0][1], net.gradients()[1])


def test_clear_frees_all():
    net = Net(chain_of(3), (6, 6, 3))
    space = Workspace(net.ops)
    passes(net, space, False)
    before = space.replaced
    space.clear()
    assert space.nbytes == 0 and space.replaced > before
    passes(net, space, False)


def test_a_first_pass_without_examples_plans_nothing():
    """Empty arrays have no place: what comes after them is planned by the first pass with examples."""
    net = Net(chain_of(4), (6, 6, 3))
    space = Poisoned(net.ops)
    net.gradients(ctx=make_pass(net.ops, 0, total=5, space=space), rows=slice(0, 0))
    assert_same(passes(net, space, False), passes(net, Apart(net.ops), False))


@pytest.mark.parametrize("name", ["digits", "mlp", "lenet", "cifar10_quick", "resnet20", "transformer"])
def test_recomputing_takes_no_more_memory_of_any_net(name):
    model = spec.load_model(name)

    def used(recompute):
        net = Net(model.graph().nodes, model.graph().input_shape, count=4, ops=make_ops("cpu", "float32"))
        ctx = make_pass(net.ops, 4, recompute=recompute)
        net.gradients(ctx=ctx)
        return ctx.space.nbytes

    assert used(True) <= used(False) * (0.75 if name == "resnet20" else 1.0)
