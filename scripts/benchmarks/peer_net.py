"""A net that ringtrain has written down, as a PyTorch module: layer for layer, with the same weights, so that timings
are of one net. Nothing of ringtrain is imported."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class LocalResponseWithin(nn.Module):
    """Caffe's WITHIN_CHANNEL, which torch does not have: squares are averaged over a window, zeros outside."""

    def __init__(self, layer):
        super().__init__()
        self.size, self.alpha, self.beta = layer.size, layer.alpha, layer.beta

    def forward(self, x):
        mean = F.avg_pool2d(x * x, self.size, 1, self.size // 2)
        return x * (1 + self.alpha * mean) ** -self.beta


class Dropout(nn.Dropout):
    """``mask``: what to multiply by in place of numbers of its own, where one is given."""

    mask = None

    def forward(self, x):
        return super().forward(x) if self.mask is None else x * self.mask


class Flatten(nn.Module):
    """Flatten in the order height, width, channel: that of images whose channels are last."""

    def forward(self, x):
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Add(nn.Module):
    def forward(self, first, *others):
        return sum(others, first)


class Concat(nn.Module):
    def forward(self, *xs):
        return torch.cat(xs, 1)


def _conv(layer, shape):
    shaped = layer.kernel, layer.stride, layer.pad, 1, layer.groups
    return nn.Conv2d(shape[-1], layer.channels, *shaped, bias=layer.bias is not None)


def _response(layer, shape):
    if layer.region == "within":
        return LocalResponseWithin(layer)
    return nn.LocalResponseNorm(layer.size, layer.alpha, layer.beta, layer.k)


def _norm(layer, shape):
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    return kind(shape[-1], layer.eps, layer.rate)


MAKERS = {
    "Conv2D": _conv,
    "Linear": lambda layer, shape: nn.Linear(shape[-1], layer.units, bias=layer.bias is not None),
    "ReLU": lambda layer, shape: nn.ReLU(inplace=True),
    "MaxPool": lambda layer, shape: nn.MaxPool2d(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil),
    "AvgPool": lambda layer, shape: nn.AvgPool2d(layer.kernel, layer.stride, layer.pad, ceil_mode=layer.ceil),
    "GlobalAvgPool": lambda layer, shape: Mean(),
    "LRN": _response,
    "BatchNorm": _norm,
    "Dropout": lambda layer, shape: Dropout(layer.rate),
    "Flatten": lambda layer, shape: Flatten(),
    "Add": lambda layer, shape: Add(),
    "Concat": lambda layer, shape: Concat(),
}


class PeerNet(nn.Module):
    """``nodes``: of own_side.described. Shapes: x [N, C, H, W] → logits [N, K]"""

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


# A parameter's name here → there, and how its axes lie there: [R, S, C, K] → [K, C, R, S], [D, K] → [K, D].
NAMES = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
AXES = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}


def _named(net: PeerNet, names):
    """Yield (ringtrain's name, the tensor in the module)."""
    keys = {name: key for name, _, key in net.plan}
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name in names:
        layer, _, parameter = name.rpartition(".")
        yield name, tensors[f"{keys[layer]}.{NAMES.get(parameter, parameter)}"]


def take_weights(net: PeerNet, weights) -> None:
    """Give the module weights by ringtrain's names, in ringtrain's layout."""
    with torch.no_grad():
        for name, tensor in _named(net, weights):
            array = weights[name]
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(array.transpose(AXES[array.ndim]))))


def gradients(net: PeerNet, names) -> dict[str, np.ndarray]:
    """Return the gradient of each parameter, by ringtrain's name and in its layout."""
    return {
        name: tensor.grad.detach().permute(np.argsort(AXES[tensor.dim()]).tolist()).cpu().numpy()
        for name, tensor in _named(net, names)
        if tensor.grad is not None
    }


class Outputs:
    """A context that keeps each layer's output for the first ``examples``, by the layer's name, images as N H W C."""

    def __init__(self, net: PeerNet, examples: int):
        self.found: dict[str, np.ndarray] = {}
        self._net, self._examples, self._hooks = net, examples, []

    def __enter__(self):
        for name, _, key in self._net.plan:
            self._hooks.append(self._net.get_submodule(key).register_forward_hook(self._keeper(name)))
        return self.found

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()

    def _keeper(self, name):
        def keep(module, given, y):
            few = y[: self._examples].detach()
            few = few.permute(0, 2, 3, 1) if few.dim() == 4 else few
            wide = few.dtype if few.dtype is torch.float64 else torch.float32
            self.found[name] = few.to("cpu", wide, copy=True).numpy()  # a ReLU may change it in place

        return keep
