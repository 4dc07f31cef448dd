"""A net that ringtrain has written down, as a PyTorch module: layer for layer, with the same weights, so that timings
are of one net. Nothing of ringtrain is imported."""

from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """``mask``: what to multiply by in place of numbers of its own, where one is given."""

    mask = None

    def forward(self, x):
        return super().forward(x) if self.mask is None else x * self.mask


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def flatten(x):
    """In the order height, width, channel: that of images whose channels are last."""
    return x.movedim(1, -1).flatten(1)


def concat(*xs):
    return torch.cat(xs, 1 if xs[0].dim() > 3 else -1)


class Embedding(nn.Embedding):
    def forward(self, x):
        return super().forward(x.long())


class PositionEmbedding(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return x + self.weight


class ClassToken(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape[-1]))

    def forward(self, x):
        places = x.flatten(2).transpose(1, 2) if x.dim() > 3 else x
        return torch.cat([self.weight.expand(len(x), 1, -1), places], 1)


class Attention(nn.Module):
    """MultiheadAttention of a sequence with itself, by the function that it calls: torch's own fused kernel."""

    def __init__(self, layer, shape):
        super().__init__()
        width, self.heads, self.causal = shape[1], layer.heads, layer.causal
        self.qkv, self.out = nn.Linear(width, 3 * width, layer.bias), nn.Linear(width, width, layer.bias)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Conv1d(nn.Conv1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class BatchNorm1d(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) if x.dim() == 2 else super().forward(x.transpose(1, 2)).transpose(1, 2)


CONVOLUTIONS = {2: Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}  # by the extents of an example
NORMS = {1: BatchNorm1d, 2: BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}


def _conv(layer, shape):
    shaped = layer.kernel, layer.stride, layer.pad, 1, layer.groups
    return CONVOLUTIONS[len(shape)](shape[-1], layer.channels, *shaped, bias=layer.bias is not None)


def _transposed(layer, shape):
    shaped = layer.kernel, layer.stride, layer.pad, layer.output_pad
    return nn.ConvTranspose2d(shape[-1], layer.channels, *shaped, bias=layer.bias is not None)


def _pool(kind, layer, shape):
    pool = getattr(nn, f"{kind}{len(shape) - 1}d")(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil)
    return pool if len(shape) > 2 else Function(lambda x: pool(x.transpose(1, 2)).transpose(1, 2))


MAKERS = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _conv),
    "ConvTranspose2D": _transposed,
    "Upsample": lambda layer, shape: nn.Upsample(scale_factor=layer.scale, mode=layer.mode),
    "Linear": lambda layer, shape: nn.Linear(shape[-1], layer.units, bias=layer.bias is not None),
    "ReLU": lambda layer, shape: nn.ReLU(inplace=True),
    **{kind: partial(_pool, kind) for kind in ("MaxPool", "AvgPool")},
    "GlobalAvgPool": lambda layer, shape: Function(lambda x: x.mean(1) if x.dim() == 3 else x.flatten(2).mean(2)),
    "BatchNorm": lambda layer, shape: NORMS[len(shape)](shape[-1], layer.eps, layer.rate),
    "LayerNorm": lambda layer, shape: nn.LayerNorm(shape[-1], layer.eps),
    "GroupNorm": lambda layer, shape: nn.GroupNorm(layer.groups, shape[-1], layer.eps),
    **{kind: lambda layer, shape, kind=kind: getattr(nn, kind)() for kind in ("Sigmoid", "Tanh", "SiLU")},
    "GELU": lambda layer, shape: nn.GELU(layer.approximate),
    "Embedding": lambda layer, shape: Embedding(layer.entries, layer.units),
    "PositionEmbedding": lambda layer, shape: PositionEmbedding(shape),
    "ClassToken": lambda layer, shape: ClassToken(shape),
    "FirstToken": lambda layer, shape: Function(lambda x: x[:, 0]),
    "Attention": Attention,
    "Dropout": lambda layer, shape: Dropout(layer.rate),
    "Flatten": lambda layer, shape: Function(flatten),
    "Add": lambda layer, shape: Function(lambda first, *others: sum(others, first)),
    "Concat": lambda layer, shape: Function(concat),
}


class PeerNet(nn.Module):
    """``nodes``: of own_side.described. Shapes: images [N, C, H, W] and volumes [N, C, D, H, W], sequences
    [N, L, C]; the output likewise."""

    def __init__(self, nodes: list[dict]):
        super().__init__()
        self.plan = [(node["name"], node["inputs"], f"m{i}") for i, node in enumerate(nodes)]
        for (_, _, key), node in zip(self.plan, nodes, strict=True):
            self.add_module(key, MAKERS[node["kind"]](SimpleNamespace(**node["settings"]), node["shape"]))

    def forward(self, x):
        outputs = {"input": x}
        for name, inputs, key in self.plan:
            outputs[name] = getattr(self, key)(*[outputs[source] for source in inputs])
        return outputs[self.plan[-1][0]]


# A parameter's name here → there, and how its axes lie there: [R, S, C, K] → [K, C, R, S], [D, K] → [K, D], and of
# transposed convolutions [C, R, S, K] → [C, K, R, S].
NAMES = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
NAMES |= {f"{part}_{kind}": f"{part}.{kind}" for part in ("qkv", "out") for kind in ("weight", "bias")}
AXES = {5: (4, 3, 0, 1, 2), 4: (3, 2, 0, 1), 3: (2, 1, 0), 2: (1, 0), 1: (0,)}
THE_SAME = {count: tuple(range(count)) for count in AXES}
AXES_OF = {nn.ConvTranspose2d: {**AXES, 4: (0, 3, 1, 2)}, Embedding: THE_SAME, PositionEmbedding: THE_SAME}


def _named(net: PeerNet, names):
    """Yield (ringtrain's name, the tensor in the module, where ringtrain's axes lie in it)."""
    keys = {name: key for name, _, key in net.plan}
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name in names:
        layer, _, parameter = name.rpartition(".")
        tensor = tensors[f"{keys[layer]}.{NAMES.get(parameter, parameter)}"]
        yield name, tensor, AXES_OF.get(type(net.get_submodule(keys[layer])), AXES)[tensor.dim()]


def take_weights(net: PeerNet, weights) -> None:
    """Give the module weights by ringtrain's names, in ringtrain's layout."""
    with torch.no_grad():
        for name, tensor, axes in _named(net, weights):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(weights[name].transpose(axes))))


def gradients(net: PeerNet, names) -> dict[str, np.ndarray]:
    """Return the gradient of each parameter, by ringtrain's name and in its layout."""
    return {
        name: tensor.grad.detach().permute(np.argsort(axes).tolist()).cpu().numpy()
        for name, tensor, axes in _named(net, names)
        if tensor.grad is not None
    }


@contextmanager
def kept_outputs(net: PeerNet, examples: int):
    """Yield a dict that gets each layer's output for the first ``examples``, by the layer's name, images as N H W C."""
    outputs: dict[str, np.ndarray] = {}

    def keep(name, y):
        few = y[:examples].detach().movedim(1, -1)
        wide = few.dtype if few.dtype is torch.float64 else torch.float32
        outputs[name] = few.to("cpu", wide, copy=True).numpy()  # a ReLU may change it in place

    with ExitStack() as stack:
        for name, _, key in net.plan:
            hook = net.get_submodule(key).register_forward_hook(lambda module, xs, y, name=name: keep(name, y))
            stack.callback(hook.remove)
        yield outputs
