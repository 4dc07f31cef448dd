"""Layers of sequences: embedding of numbers and of places, a class token, and attention."""

import math
from dataclasses import dataclass

from ringtrain.errors import ModelError
from ringtrain.nn import shapes
from ringtrain.nn.base import Fill, Layer, Parameter
from ringtrain.nn.layers import as_rows
from ringtrain.nn.settings import setting, whole

SMALL = Fill("gaussian", 0.02)  # of GPT and BERT: Radford et al. 2018, section 4.1
WHOLE_NUMBERS = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24}  # up to which a type has all of them


@dataclass(frozen=True)
class Embedding(Layer):
    """y = weight[x], x whole numbers from 0 to entries - 1 in floats. Any other number gives NaN, so that the loss is
    NaN and the run ends with this layer's name. The weights start gaussian with a deviation of 0.02.

    Shapes: x [N,L] → y [N,L,units]; weight [entries,units]"""

    entries: int = whole(1, most=WHOLE_NUMBERS["float32"])
    units: int = whole(1)

    def shape(self, inputs):
        shape = shapes.single(self, inputs)
        if len(shape) != 1:
            raise shapes.misfit(self, inputs, "a list of whole numbers, those of the entries")
        return (*shape, self.units)

    def parameters(self, inputs):
        return (Parameter("weight", (self.entries, self.units), SMALL, table=True),)

    def nonfinite_cause(self):
        return (
            f"which an input other than the whole numbers 0 to {self.entries - 1} makes so: look at the data and at "
            "entries"
        )

    def forward(self, ctx, weights, xs):
        (x_NL,) = xs
        dtype = ctx.ops.active.name
        most = WHOLE_NUMBERS.get(dtype, self.entries)
        if self.entries > most + 1:
            raise ModelError(
                f"layer {self.name!r} (Embedding) has {self.entries} entries, but activations of {dtype} hold whole "
                f"numbers up to {most} alone: use --precision float32"
            )
        y_NLD = ctx.space.shared(f"{self.name}.y", (*x_NL.shape, self.units))
        ctx.ops.embedding(x_NL, weights["weight"], y_NLD)
        return y_NLD, x_NL

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        ctx.ops.embedding_back(tape, dy, grads["weight"], accumulate=ctx.accumulate)
        if not wanted[0]:
            return (None,)
        dx_NL = ctx.space.shared(f"{self.name}.dx", tape.shape)
        ctx.ops.fill(dx_NL, 0)
        return (dx_NL,)


@dataclass(frozen=True)
class PositionEmbedding(Layer):
    """y = x + weight, a learnt row for each place of the sequence. The weights start as in :class:`Embedding`.

    Shapes: x [N,L,D] → y [N,L,D]; weight [L,D]"""

    def shape(self, inputs):
        return shapes.sequence(self, inputs)

    def parameters(self, inputs):
        return (Parameter("weight", shapes.sequence(self, inputs), SMALL, table=True),)

    def flops(self, inputs):
        return shapes.element_count(inputs[0])

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", x.shape)
        ctx.ops.add_bias(_flat(x), weights["weight"].reshape((x.shape[1] * x.shape[2],)), _flat(y))
        return y, None

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        dy_ND, dweight = _flat(dy), grads["weight"].reshape((dy.shape[1] * dy.shape[2],))
        ctx.ops.bias_back(None, dy_ND, dweight, accumulate=ctx.accumulate)
        return (dy if wanted[0] else None,)


def _flat(x):
    return x.reshape((x.shape[0], math.prod(x.shape[1:])))


@dataclass(frozen=True)
class ClassToken(Layer):
    """A learnt row, and behind it all places of x. The weights start as in :class:`Embedding`.

    Shapes: x [N,...,D] → y [N,1 + places,D]; weight [D]
    Source: Dosovitskiy et al. 2021, section 3.1"""

    def shape(self, inputs):
        *places, D = shapes.grid(self, inputs)
        return 1 + math.prod(places), D

    def parameters(self, inputs):
        return (Parameter("weight", shapes.grid(self, inputs)[-1:], SMALL, table=True),)

    def forward(self, ctx, weights, xs):
        (x,) = xs
        first_ND = ctx.space.shared(f"{self.name}.first", (x.shape[0], x.shape[-1]))
        y_NLD = ctx.space.shared(f"{self.name}.y", (x.shape[0], *self.shape([x.shape[1:]])))
        ctx.ops.fill(first_ND, 0)
        ctx.ops.add_bias(first_ND, weights["weight"], first_ND)
        ctx.ops.concat([first_ND, _flat(x)], _flat(y_NLD))
        return y_NLD, x.shape

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        dfirst_ND = ctx.space.shared(f"{self.name}.dfirst", (tape[0], tape[-1]))
        dx = ctx.space.shared(f"{self.name}.dx", tape)
        ctx.ops.concat_back(_flat(dy), [dfirst_ND, _flat(dx)])
        ctx.ops.bias_back(None, dfirst_ND, grads["weight"], accumulate=ctx.accumulate)
        return (dx if wanted[0] else None,)


@dataclass(frozen=True)
class FirstToken(Layer):
    """The first place of a sequence, which a :class:`ClassToken` made.

    Shapes: x [N,L,D] → y [N,D]"""

    def shape(self, inputs):
        return shapes.sequence(self, inputs)[1:]

    def forward(self, ctx, weights, xs):
        (x_NLD,) = xs
        n, length, width = x_NLD.shape
        y_ND = ctx.space.shared(f"{self.name}.y", (n, width))
        rest = ctx.space.shared(f"{self.name}.rest", (n, (length - 1) * width))
        ctx.ops.concat_back(_flat(x_NLD), [y_ND, rest])
        return y_ND, x_NLD.shape

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        n, length, width = tape
        dx_NLD = ctx.space.shared(f"{self.name}.dx", tape)
        rest = ctx.space.shared(f"{self.name}.rest", (n, (length - 1) * width))
        ctx.ops.fill(rest, 0)
        ctx.ops.concat([dy, rest], _flat(dx_NLD))
        return (dx_NLD,)


@dataclass(frozen=True)
class Attention(Layer):
    """Self-attention of several heads: queries, keys and values by one product each, softmax(q · kᵀ / sqrt(D/heads)) ·
    v of each head, and a product of all heads beside one another. With ``causal`` a place sees itself and those before
    it. It is torch.nn.MultiheadAttention(batch_first=True) with its weights transposed; both weights start uniform with
    variance 1/D, both biases at 0.

    Shapes: x [N,L,D] → y [N,L,D]; qkv_weight [D,3D], qkv_bias [3D], out_weight [D,D], out_bias [D]
    Source: Vaswani et al. 2017, section 3.2"""

    factors = ("qkv_weight", "out_weight")
    heads: int = whole(1)
    causal: bool = setting(bool, False)
    bias: bool = setting(bool, True)

    def shape(self, inputs):
        shape = shapes.sequence(self, inputs)
        if shape[1] % self.heads:
            raise shapes.misfit(self, inputs, f"a sequence LxD whose D heads = {self.heads} divides")
        return shape

    def parameters(self, inputs):
        D = shapes.sequence(self, inputs)[1]
        parameters = []
        for name, units in (("qkv", 3 * D), ("out", D)):
            parameters.append(Parameter(f"{name}_weight", (D, units), Fill("xavier", 0.0, D, units)))
            if self.bias:
                parameters.append(Parameter(f"{name}_bias", (units,), Fill("constant", 0.0), "bias"))
        return tuple(parameters)

    def flops(self, inputs):
        L, D = inputs[0]
        return 4 * L * D * (2 * D + self.bias) + 4 * L * L * D

    def forward(self, ctx, weights, xs):
        (x_NLD,) = xs
        (n, length, width), space = x_NLD.shape, ctx.space
        x_NLE = space.shared(f"{self.name}.qkv", (n, length, 3 * width))
        heads_NLD = space.shared(f"{self.name}.heads", x_NLD.shape)
        shares_NHLL = space.shared(f"{self.name}.shares", (n, self.heads, length, length))
        y_NLD = space.shared(f"{self.name}.y", x_NLD.shape)
        ctx.ops.linear(as_rows(x_NLD), weights["qkv_weight"], weights.get("qkv_bias"), as_rows(x_NLE))
        ctx.ops.attention(x_NLE, heads_NLD, shares_NHLL, self.causal)
        ctx.ops.linear(as_rows(heads_NLD), weights["out_weight"], weights.get("out_bias"), as_rows(y_NLD))
        return y_NLD, (x_NLD, x_NLE, shares_NHLL, heads_NLD)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x_NLD, x_NLE, shares_NHLL, heads_NLD = tape
        dheads_NLD = ctx.space.shared(f"{self.name}.dheads", heads_NLD.shape)
        dx_NLE = ctx.space.shared(f"{self.name}.dqkv", x_NLE.shape)
        dx_NLD = ctx.space.shared(f"{self.name}.dx", x_NLD.shape) if wanted[0] else None
        self._linear_back(ctx, "out", weights, grads, heads_NLD, dy, dheads_NLD)
        ctx.ops.attention_back(x_NLE, shares_NHLL, dheads_NLD, dx_NLE)
        self._linear_back(ctx, "qkv", weights, grads, x_NLD, dx_NLE, dx_NLD)
        return (dx_NLD,)

    @staticmethod
    def _linear_back(ctx, name, weights, grads, x, dy, dx) -> None:
        rows, slopes = as_rows(x), as_rows(dy)
        arrays = rows, weights[f"{name}_weight"], slopes, slopes, grads[f"{name}_weight"], grads.get(f"{name}_bias")
        ctx.ops.linear_back(*arrays, None if dx is None else as_rows(dx), accumulate=ctx.accumulate)
