"""The ONNX operators of each layer kind, of operator set 17.

Images and volumes are [N,C,H,W] and [N,C,D,H,W] there, as convolutions of ONNX want them; sequences [N,L,D] and vectors
[N,C] are as here. A layer that works on the last axis has a Transpose before and behind it.

OPERATORS: kind → function of (graph, layer, names of the inputs, their shapes here, weights) → name of the output.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ringtrain.nn.base import Shape
from ringtrain.weights.layouts import AXES

Weights = dict[str, np.ndarray]  # of a layer, by short names


class Operators:
    """A graph under construction: nodes and constants."""

    def __init__(self, helper, to_tensor):
        self._helper, self._to_tensor = helper, to_tensor
        self.nodes: list = []
        self.constants: list = []
        self._layer, self._count = "", 0

    def begin(self, layer: str) -> None:
        """Name what follows by a layer."""
        self._layer, self._count = layer, 0

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its output."""
        self._count += 1
        name = f"{self._layer}/{operator}_{self._count}"
        self.nodes.append(self._helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values, what: str, dtype: type = np.float32) -> str:
        """Add a constant; its name."""
        name = f"{self._layer}.{what}"
        self.constants.append(self._to_tensor(np.asarray(values, dtype, order="C"), name))
        return name

    # ── axes ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def channels_last(self, x: str, rank: int) -> str:
        """[N,C,H,W] → [N,H,W,C]; rank: axes without N"""
        return self.add("Transpose", x, perm=[0, *range(2, rank + 1), 1]) if rank > 2 else x

    def channels_first(self, x: str, rank: int) -> str:
        """[N,H,W,C] → [N,C,H,W]"""
        return self.add("Transpose", x, perm=[0, rank, *range(1, rank)]) if rank > 2 else x

    def swap_axes(self, x: str) -> str:
        """[N,L,D] → [N,D,L], and back"""
        return self.add("Transpose", x, perm=[0, 2, 1])

    def biased(self, y: str, w: Weights, name: str) -> str:
        """y + bias, where the layer has that"""
        return self.add("Add", y, self.constant(w[name], name)) if name in w else y

    def reshape(self, x: str, shape: Sequence[int], what: str) -> str:
        """Reshape; 0: as it is, -1: what is left"""
        return self.add("Reshape", x, self.constant(shape, what, np.int64))


Operator = Callable[[Operators, Any, Sequence[str], Sequence[Shape], Weights], str]


# ── convolutions ──────────────────────────────────────────────────────────────────────────────────────────────────
def convolution(g, layer, xs, shapes, w):
    kind, rank = type(layer).__name__, len(shapes[0]) - 1
    x = g.swap_axes(xs[0]) if rank == 1 else xs[0]
    operands = [x, g.constant(w["weight"].transpose(AXES[kind, "weight"]), "weight")]
    if "bias" in w:
        operands.append(g.constant(w["bias"], "bias"))
    window = {"pads": [layer.pad] * (2 * rank), "strides": [layer.stride] * rank, "kernel_shape": [layer.kernel] * rank}
    if kind == "ConvTranspose2D":
        return g.add("ConvTranspose", *operands, **window, output_padding=[layer.output_pad] * 2)
    y = g.add("Conv", *operands, **window, group=layer.groups)
    return g.swap_axes(y) if rank == 1 else y


def upsample(g, layer, xs, shapes, w):
    scales = g.constant([1, 1, layer.scale, layer.scale], "scales")
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if layer.mode == "bilinear":
        how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return g.add("Resize", xs[0], "", scales, **how)


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────
def linear(g, layer, xs, shapes, w):
    return g.biased(g.add("MatMul", xs[0], g.constant(w["weight"], "weight")), w, "bias")


def attention(g, layer, xs, shapes, w):
    (length, width), heads = shapes[0], layer.heads
    each = width // heads
    joined = g.biased(g.add("MatMul", xs[0], g.constant(w["qkv_weight"], "qkv_weight")), w, "qkv_bias")
    parts = g.reshape(joined, [0, length, 3, heads, each], "parts")
    q, k, v = (
        g.add("Gather", parts, g.constant(i, f"part{i}", np.int64), axis=2) for i in range(3)
    )  # [N, L, heads, each]
    q, v = (g.add("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, v))
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 3, 1]))
    scores = g.add("Mul", scores, g.constant(each**-0.5, "scale"))
    if layer.causal:
        later = np.triu(np.full((length, length), np.finfo(np.float32).min / 2, np.float32), 1)
        scores = g.add("Add", scores, g.constant(later, "mask"))
    mixed = g.add("Transpose", g.add("MatMul", g.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = g.add("MatMul", g.reshape(mixed, [0, length, width], "joined"), g.constant(w["out_weight"], "out_weight"))
    return g.biased(y, w, "out_bias")


def embedding(g, layer, xs, shapes, w):
    numbers = g.add("Cast", xs[0], to=7)  # int64
    return g.add("Gather", g.constant(w["weight"], "weight"), numbers, axis=0)


def position_embedding(g, layer, xs, shapes, w):
    return g.add("Add", xs[0], g.constant(w["weight"], "weight"))


def class_token(g, layer, xs, shapes, w):
    rank, width = len(shapes[0]), shapes[0][-1]
    places = g.reshape(g.channels_last(xs[0], rank), [0, -1, width], "places")
    shape = g.add("Concat", g.add("Shape", places, end=1), g.constant([1, width], "row", np.int64), axis=0)
    return g.add("Concat", g.add("Expand", g.constant(w["weight"], "weight"), shape), places, axis=1)


def first_token(g, layer, xs, shapes, w):
    return g.add("Gather", xs[0], g.constant(0, "first", np.int64), axis=1)


# ── elementwise ───────────────────────────────────────────────────────────────────────────────────────────────────
def same(g, layer, xs, shapes, w):
    return xs[0]


def elementwise(operator: str) -> Operator:
    return lambda g, layer, xs, shapes, w: g.add(operator, *xs)


def silu(g, layer, xs, shapes, w):
    return g.add("Mul", xs[0], g.add("Sigmoid", xs[0]))


def gelu(g, layer, xs, shapes, w):
    (x,) = xs
    half, one = g.constant(0.5, "half"), g.constant(1, "one")
    if layer.approximate == "tanh":
        cube = g.add("Mul", g.add("Mul", x, g.add("Mul", x, x)), g.constant(0.044715, "cube"))
        inner = g.add("Mul", g.add("Add", x, cube), g.constant((2 / np.pi) ** 0.5, "inner"))
        share = g.add("Tanh", inner)
    else:
        share = g.add("Erf", g.add("Mul", x, g.constant(0.5**0.5, "inner")))
    return g.add("Mul", g.add("Mul", x, half), g.add("Add", share, one))


def concat(g, layer, xs, shapes, w):
    return g.add("Concat", *xs, axis=2 if len(shapes[0]) == 2 else 1)


def flatten(g, layer, xs, shapes, w):
    """Elements keep ringtrain's order, with channels last: so are the weights behind."""
    return g.add("Flatten", g.channels_last(xs[0], len(shapes[0])), axis=1)


# ── normalisation ─────────────────────────────────────────────────────────────────────────────────────────────────
def batch_norm(g, layer, xs, shapes, w):
    constants = [g.constant(w[name], name) for name in ("gamma", "beta", "mean", "variance")]
    is_sequence = len(shapes[0]) == 2
    x = g.swap_axes(xs[0]) if is_sequence else xs[0]
    y = g.add("BatchNormalization", x, *constants, epsilon=layer.eps)
    return g.swap_axes(y) if is_sequence else y


def layer_norm(g, layer, xs, shapes, w):
    rank = len(shapes[0])
    constants = [g.constant(w[name], name) for name in ("gamma", "beta")]
    y = g.add("LayerNormalization", g.channels_last(xs[0], rank), *constants, axis=-1, epsilon=layer.eps)
    return g.channels_first(y, rank)


def group_norm(g, layer, xs, shapes, w):
    rank, channels = len(shapes[0]), shapes[0][-1]
    x = g.swap_axes(xs[0]) if rank == 2 else xs[0]
    spread = [1] * (rank - 1)
    groups = g.reshape(x, [0, layer.groups, -1], "groups")
    ones, zeros = g.constant(np.ones(layer.groups), "ones"), g.constant(np.zeros(layer.groups), "zeros")
    y = g.add("InstanceNormalization", groups, ones, zeros, epsilon=layer.eps)
    extents = [channels, *(shapes[0][:-1])]
    y = g.reshape(y, [0, *extents], "extents")
    y = g.add("Mul", y, g.constant(w["gamma"].reshape(-1, *spread), "gamma"))
    y = g.add("Add", y, g.constant(w["beta"].reshape(-1, *spread), "beta"))
    return g.swap_axes(y) if rank == 2 else y


# ── pooling ───────────────────────────────────────────────────────────────────────────────────────────────────────
def _pool(g, layer, x: str, shape: Shape, operator: str, factors=None, **rest) -> str:
    """Pooling, of a sequence with its channels first; pads reach as far as the last windows."""
    pool, axes = layer.geometry, len(shape) - 1
    ends = [max(0, (pool.output(size) - 1) * pool.stride + pool.kernel - size - pool.pad) for size in shape[:-1]]
    window = {"kernel_shape": [pool.kernel] * axes, "strides": [pool.stride] * axes, **rest}
    y = g.add(operator, g.swap_axes(x) if axes == 1 else x, pads=[pool.pad] * axes + ends, **window)
    if factors is not None:
        y = g.add("Mul", y, g.constant(factors, "counted"))
    return g.swap_axes(y) if axes == 1 else y


def max_pool(g, layer, xs, shapes, w):
    return _pool(g, layer, xs[0], shapes[0], "MaxPool")


def avg_pool(g, layer, xs, shapes, w):
    """The divisor counts padding, and nothing beyond it; ONNX's divisor counts all or neither."""
    pool, sizes = layer.geometry, shapes[0][:-1]

    def counted(size: int):
        starts = np.arange(pool.output(size)) * pool.stride - pool.pad
        return np.minimum(starts + pool.kernel, size + pool.pad) - starts

    factors = pool.kernel ** len(sizes) / reduce(np.multiply.outer, map(counted, sizes))
    factors = factors if (factors != 1).any() else None
    return _pool(g, layer, xs[0], shapes[0], "AveragePool", factors, count_include_pad=1)


def global_avg_pool(g, layer, xs, shapes, w):
    rank = len(shapes[0])
    axes = [1] if rank == 2 else list(range(2, rank + 1))
    return g.add("ReduceMean", xs[0], axes=axes, keepdims=0)


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "ConvTranspose2D"), convolution),
    "Upsample": upsample,
    "Linear": linear,
    "Attention": attention,
    "Embedding": embedding,
    "PositionEmbedding": position_embedding,
    "ClassToken": class_token,
    "FirstToken": first_token,
    "ReLU": elementwise("Relu"),
    "Sigmoid": elementwise("Sigmoid"),
    "Tanh": elementwise("Tanh"),
    "SiLU": silu,
    "GELU": gelu,
    "Dropout": same,
    "Add": elementwise("Sum"),
    "Concat": concat,
    "Flatten": flatten,
    "BatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "GroupNorm": group_norm,
    "MaxPool": max_pool,
    "AvgPool": avg_pool,
    "GlobalAvgPool": global_avg_pool,
}
