"""Layers and nets beside PyTorch in float64: outputs, gradients, and training on fields of values. Runs where torch is
installed.
"""

import importlib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
from nn_support import bound_arena, chain, make_pass

from ringtrain.config.record import OptimizerConfig
from ringtrain.nn import spec
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.conv_columns import Conv1D, Conv3D, ConvTranspose2D
from ringtrain.nn.graph import Graph
from ringtrain.nn.layers import GELU, Sigmoid, SiLU, Tanh
from ringtrain.nn.norm import BatchNorm, GroupNorm, LayerNorm
from ringtrain.nn.pool import AvgPool, GlobalAvgPool, MaxPool, Upsample
from ringtrain.nn.sequence import Attention, ClassToken, FirstToken
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.catalogue import make_optimizer
from tests.updates import apply

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
SCRIPTS = Path(__file__).parents[2] / "scripts"
COUNT = 3
LINE, IMAGE, VOLUME = (9, 4), (6, 5, 4), (4, 5, 3, 4)
SEQUENCES = 3  # axes of sequences, with N
CASES = [
    (Conv1D("c", 6, 3, pad=1), LINE),
    (Conv1D("c", 6, 4, stride=2, pad=2, groups=2), LINE),
    (Conv1D("c", 4, 3, groups=4, bias=None), LINE),
    (Conv2D("c", 4, 3, stride=2, pad=1, groups=4), IMAGE),
    *((Conv2D("c", 6, 3, stride=stride, pad=1), IMAGE) for stride in (1, 2)),
    (Conv2D("c", 6, 5, stride=2, pad=2, groups=2), IMAGE),
    (Conv2D("c", 6, 1, bias=None), IMAGE),
    (Conv3D("c", 3, 3, pad=1), VOLUME),
    (Conv3D("c", 6, 2, stride=2, groups=2), VOLUME),
    (ConvTranspose2D("c", 3, 2, stride=2), IMAGE),
    (ConvTranspose2D("c", 5, 3, stride=2, pad=1, output_pad=1), IMAGE),
    (ConvTranspose2D("c", 5, 4, stride=3, pad=2, bias=None), IMAGE),
    (Upsample("u", 2), IMAGE),
    (Upsample("u", 3, mode="bilinear"), IMAGE),
    (Upsample("u", 4, mode="bilinear"), IMAGE),
    *((kind("p", 3, 2, pad=1, ceil=True), shape) for kind in (MaxPool, AvgPool) for shape in (LINE, IMAGE, VOLUME)),
    *((kind("p", 2, 2), IMAGE) for kind in (MaxPool, AvgPool)),
    *((kind("p", 3, 2, pad=1), IMAGE) for kind in (MaxPool, AvgPool)),
    *((kind("a"), IMAGE) for kind in (Sigmoid, Tanh, SiLU, GELU)),
    (GELU("a", approximate="tanh"), IMAGE),
    *((GroupNorm("n", groups), IMAGE) for groups in (1, 2)),
    (LayerNorm("n"), LINE),
    *((Attention("a", 2, causal=causal), LINE) for causal in (False, True)),
    (ClassToken("t"), LINE),
    (ClassToken("t"), IMAGE),
    (FirstToken("f"), LINE),
    (GlobalAvgPool("g"), LINE),
    (GlobalAvgPool("g"), VOLUME),
    (BatchNorm("b", ghost=COUNT), LINE),
    (BatchNorm("b", ghost=COUNT), VOLUME),
]


@pytest.fixture
def peer(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS / "benchmarks")
    return importlib.import_module("peer_net")


class Pair:
    """A net on both sides, in float64, with the same weights."""

    def __init__(self, peer, graph: Graph, ops):
        self.peer, self.graph, self.ops = peer, graph, ops
        self.arena = bound_arena(graph, ops, 5)
        self.names = [span.name for span in self.arena.spans]
        self.nodes = [self._plain(node) for node in graph.nodes]
        self.net = peer.PeerNet(self.nodes).double()
        peer.take_weights(self.net, self.weights())

    def _plain(self, node) -> dict:
        settings = {key: value if value is None or isinstance(value, int | float | str) else True
                    for key, value in vars(node.layer).items()}  # fmt: skip
        kind, shape = type(node.layer).__name__, self.graph.shapes[node.inputs[0]]
        return {"name": node.name, "kind": kind, "inputs": node.inputs, "settings": settings, "shape": shape}

    def weights(self) -> dict:
        return {span.name: self.arena.weight(span) for span in self.arena.spans}

    def forward(self, ctx, x):
        y, tapes = self.graph.forward(ctx, self.ops.from_host(x))
        return y, tapes, self.net(there(x))

    def gradients(self) -> dict:
        return self.peer.gradients(self.net, self.names)


def there(x):
    """An array as the peer's net takes it: channels of images and volumes behind the examples, sequences as here."""
    return torch.tensor(np.moveaxis(x, -1, 1) if x.ndim > SEQUENCES else x).contiguous()


def here(t):
    return (t.movedim(1, -1) if t.dim() > SEQUENCES else t).detach().numpy()


def close(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("layer", "shape"), CASES, ids=lambda value: f"{value!r}"[:60])
def test_layers_compute_what_torchs_do(peer, layer, shape, device, at_once):
    pair = Pair(peer, Graph(chain(layer), shape, wants_dx=True), make_ops(device, "float64"))
    pair.ops.columns_at_once = at_once
    random = np.random.default_rng(2)
    x = random.standard_normal((COUNT, *shape))
    ctx, leaf = make_pass(pair.ops, COUNT), there(x).requires_grad_()
    y, tapes = pair.graph.forward(ctx, pair.ops.from_host(x))
    wanted = pair.net(leaf)
    dy = random.standard_normal(y.shape)
    close(y.copy(), here(wanted))
    list(pair.graph.backward(ctx, pair.ops.from_host(dy), tapes))
    wanted.backward(there(dy))
    close(tapes.dx, here(leaf.grad))
    for name, gradient in pair.gradients().items():
        close(pair.arena.grad(pair.arena.spans[pair.names.index(name)]), gradient)


def make_fields():
    loader = SourceFileLoader("make_fields", str(SCRIPTS / "make-fields"))
    module = module_from_spec(spec_from_loader("make_fields", loader))
    loader.exec_module(module)
    return module


def test_twenty_steps_on_fields_are_torchs(peer):
    """The U-Net with the mean of squared errors, on smaller fields, by SGD with momentum."""
    model = spec.parse_model(spec.load_model("unet").text.replace("[64, 64, 1]", "[16, 16, 1]"), "unet")
    pair = Pair(peer, model.graph(), make_ops("cpu", "float64"))
    steps, batch, lr = 20, 4, 0.05
    xs, ys = make_fields().pairs(1, range(steps * batch), 16, 2.0)
    sgd = make_optimizer("sgd", pair.arena.spans, OptimizerConfig(momentum=0.9, weight_decay=0.0))
    slots = {name: pair.ops.zeros((pair.arena.count,)) for name in sgd.slots}
    theirs = torch.optim.SGD(pair.net.parameters(), lr, momentum=0.9)
    losses, their_losses = [], []
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        x, wanted = xs[rows].astype(np.float64), ys[rows].astype(np.float64)
        ctx = make_pass(pair.ops, batch)
        y, tapes, z = pair.forward(ctx, x)
        losses.append(np.square(y - wanted).mean())
        list(pair.graph.backward(ctx, 2 * (y - wanted) / wanted.size, tapes))
        apply(sgd, pair.ops, pair.arena.weights, pair.arena.grads, slots, lr, step + 1, 0, pair.arena.count)
        loss = torch.nn.functional.mse_loss(z, there(wanted))
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        their_losses.append(loss.item())
    np.testing.assert_allclose(losses, their_losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    trained = peer.PeerNet(pair.nodes).double()
    peer.take_weights(trained, pair.weights())
    for ours, wanted in zip(trained.parameters(), pair.net.parameters(), strict=True):
        np.testing.assert_allclose(
            ours.detach(), wanted.detach(), rtol=1e-5, atol=1e-5 * float(wanted.detach().abs().max())
        )
    assert losses[-1] < 0.6 * losses[0]
