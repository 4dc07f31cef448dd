"""The models transformer and gpt beside torch.nn.TransformerEncoderLayer in float64. Runs where torch is installed."""

import numpy as np
import pytest
from nn_support import bound_arena, make_pass, windows

from ringtrain.nn import spec
from ringtrain.nn.losses import SoftmaxCrossEntropy
from ringtrain.ops.catalogue import make_ops

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
COUNT, STEPS = 16, 20
ADAMW = {"lr": 0.002, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.05}
LAYER = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = torch.nn.Linear(28, 64), torch.nn.Linear(64, 10)
        self.places, self.norm = torch.nn.Parameter(torch.zeros(28, 64)), torch.nn.LayerNorm(64)
        self.encoder1 = torch.nn.TransformerEncoderLayer(64, 4, 128, **LAYER)
        self.encoder2 = torch.nn.TransformerEncoderLayer(64, 4, 128, **LAYER)

    def forward(self, x):
        y = self.encoder2(self.encoder1(self.rows(x) + self.places))
        return self.out(self.norm(y).mean(1))


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = torch.nn.Embedding(256, 128), torch.nn.Parameter(torch.zeros(128, 128))
        for number in range(1, 5):
            setattr(self, f"decoder{number}", torch.nn.TransformerEncoderLayer(128, 4, 512, **LAYER))
        self.norm, self.out = torch.nn.LayerNorm(128), torch.nn.Linear(128, 256, bias=False)

    def forward(self, x):
        y, mask = self.bytes(x.long()) + self.places, torch.nn.Transformer.generate_square_subsequent_mask(128)
        for number in range(1, 5):
            y = getattr(self, f"decoder{number}")(y, src_mask=mask.double(), is_causal=True)
        return self.out(self.norm(y))


def images():
    random = np.random.default_rng(3)
    return random.random((COUNT, 28, 28)), random.integers(0, 10, COUNT).astype(np.int32)


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
    return array.T if array.ndim == 2 and not name.startswith(("bytes", "places")) else array


@pytest.mark.parametrize(
    ("kind", "name", "module", "examples", "within"),
    [
        ("cpu", "transformer", Encoder, images, 1e-5),
        ("reference", "transformer", Encoder, images, 1e-5),
        ("cpu", "gpt", Decoder, windows, 1e-9),
    ],
)
def test_twenty_steps_are_those_of_torch(kind, name, module, examples, within):
    ops, graph = make_ops(kind, "float64"), spec.load_model(name).graph()
    arena, net = bound_arena(graph, ops, 1), module().double()
    tensors = dict(net.named_parameters())
    assert {tensor_name(span.name) for span in arena.spans} == set(tensors)
    with torch.no_grad():
        for span in arena.spans:
            tensors[tensor_name(span.name)].copy_(torch.tensor(turned(span.name, arena.weight(span)).copy()))
    x, labels = examples()
    rate = {"lr": ADAMW["lr"], "betas": (ADAMW["beta1"], ADAMW["beta2"]), "eps": ADAMW["eps"]}
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=ADAMW["decay"], **rate)
    m, v, ctx = ops.zeros((arena.count,)), ops.zeros((arena.count,)), make_pass(ops, len(x))
    losses = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        scores = net(torch.tensor(x)).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels).long().flatten())
        loss.backward()
        optimizer.step()
        totals = ops.zeros((3,), "float64")
        logits, tapes = graph.forward(ctx, ops.from_host(x))
        dlogits = SoftmaxCrossEntropy().backward(ctx, logits, ops.from_host(labels), totals, labels.size)
        list(graph.backward(ctx, dlogits, tapes))
        ops.adamw(arena.weights, arena.grads, m, v, step=step, **ADAMW)
        losses.append((totals[0] / labels.size, loss.item()))
    losses, other = np.array(losses).T
    np.testing.assert_allclose(losses, other, rtol=1e-9)
    assert losses[-1] < 0.7 * losses[0]  # it has learnt something in these steps
    for span in arena.spans:
        wanted = turned(span.name, tensors[tensor_name(span.name)].detach().numpy())
        np.testing.assert_allclose(arena.weight(span), wanted, rtol=within, atol=within * np.abs(wanted).max())
