"""models/transformer.toml beside torch.nn.TransformerEncoderLayer in float64. Runs where torch is installed."""

import numpy as np
import pytest
from nn_support import bound_arena, make_pass

from ringtrain.nn import spec
from ringtrain.nn.losses import SoftmaxCrossEntropy
from ringtrain.ops.catalogue import make_ops

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
COUNT, STEPS = 16, 20
ADAMW = {"lr": 0.002, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.05}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = torch.nn.Linear(28, 64), torch.nn.Linear(64, 10)
        self.places, self.norm = torch.nn.Parameter(torch.zeros(28, 64)), torch.nn.LayerNorm(64)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.encoder1 = torch.nn.TransformerEncoderLayer(64, 4, 128, **options)
        self.encoder2 = torch.nn.TransformerEncoderLayer(64, 4, 128, **options)

    def forward(self, x):
        y = self.encoder2(self.encoder1(self.rows(x) + self.places))
        return self.out(self.norm(y).mean(1))


WITHIN = {
    "attention.qkv_": "self_attn.in_proj_",
    "attention.out_": "self_attn.out_proj.",
    "wide.": "linear1.",
    "narrow.": "linear2.",
}


def tensor_name(name: str) -> str:
    """The name in torch of one of ringtrain's parameters."""
    for name_here, other in WITHIN.items():
        name = name.replace(name_here, other)
    name = name.replace("gamma", "weight").replace("beta", "bias")
    return name.removesuffix(".weight") if name.startswith("places") else name


def turned(name: str, array):
    """Between [D, K] here and [K, D] there, either way."""
    return array.T if array.ndim == 2 and not name.startswith("places") else array


@pytest.mark.parametrize("kind", ["cpu", "reference"])
def test_twenty_steps_are_those_of_torch(kind):
    ops, graph = make_ops(kind, "float64"), spec.load_model("transformer").graph()
    arena, net = bound_arena(graph, ops, 1), Encoder().double()
    tensors = dict(net.named_parameters())
    assert {tensor_name(span.name) for span in arena.spans} == set(tensors)
    with torch.no_grad():
        for span in arena.spans:
            tensors[tensor_name(span.name)].copy_(torch.tensor(turned(span.name, arena.weight(span)).copy()))
    random = np.random.default_rng(3)
    x, labels = random.random((COUNT, 28, 28)), random.integers(0, 10, COUNT).astype(np.int32)
    rate = {"lr": ADAMW["lr"], "betas": (ADAMW["beta1"], ADAMW["beta2"]), "eps": ADAMW["eps"]}
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=ADAMW["decay"], **rate)
    m, v, ctx = ops.zeros((arena.count,)), ops.zeros((arena.count,)), make_pass(ops, COUNT)
    losses = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(labels).long())
        loss.backward()
        optimizer.step()
        totals = ops.zeros((3,), "float64")
        logits, tapes = graph.forward(ctx, ops.from_host(x))
        dlogits = SoftmaxCrossEntropy().backward(ctx, logits, ops.from_host(labels), totals, COUNT)
        list(graph.backward(ctx, dlogits, tapes))
        ops.adamw(arena.weights, arena.grads, m, v, step=step, **ADAMW)
        losses.append((totals[0] / COUNT, loss.item()))
    losses, other = np.array(losses).T
    np.testing.assert_allclose(losses, other, rtol=1e-9)
    assert losses[-1] < 0.7 * losses[0]  # it has learnt something in these steps
    for span in arena.spans:
        wanted = turned(span.name, tensors[tensor_name(span.name)].detach().numpy())
        np.testing.assert_allclose(arena.weight(span), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
