"""Layers without windows: fully connected, elementwise, joining and reshaping ones."""

from dataclasses import dataclass, field

from ringtrain.nn import shapes
from ringtrain.nn.base import Fusable, Layer
from ringtrain.nn.settings import BIAS, HE, WEIGHT, ZERO, ParameterSpec, number, setting, whole
from ringtrain.ops.base import ACTIVATIONS
from ringtrain.ops.keys import name_key


def as_rows(x):
    """Return an array's rows, the lines of its last axis. Shapes: [..., D] → [N, D]"""
    return x.reshape((shapes.element_count(x.shape[:-1]), x.shape[-1]))


@dataclass(frozen=True)
class Linear(Fusable):
    """y = x · weight + bias, over the last axis

    Shapes: x [N,D] → y [N,K], x [N,L,D] → y [N,L,K]; weight [D,K], bias [K]"""

    factors = ("weight",)
    units: int = whole(1)
    weight: ParameterSpec = field(default=HE, metadata=WEIGHT)
    bias: ParameterSpec | None = field(default=ZERO, metadata=BIAS)

    def shape(self, inputs):
        return (*shapes.rows(self, inputs)[:-1], self.units)

    def parameters(self, inputs):
        D, K = shapes.rows(self, inputs)[-1], self.units
        weight = self.weight.parameter("weight", (D, K), "weight", fan_in=D, fan_out=K)
        return (weight,) if self.bias is None else (weight, self.bias.parameter("bias", (K,), "bias"))

    def flops(self, inputs):
        return shapes.element_count(inputs[0][:-1]) * self.units * (2 * inputs[0][-1] + (self.bias is not None))

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", (*x.shape[:-1], self.units))
        ctx.ops.linear(as_rows(x), weights["weight"], weights.get("bias"), as_rows(y), relu=self.relu)
        return y, (x, y)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, y = tape
        dx = ctx.space.shared(f"{self.name}.dx", x.shape) if wanted[0] else None
        ctx.ops.linear_back(
            as_rows(x),
            weights["weight"],
            as_rows(y),
            as_rows(dy),
            grads["weight"],
            grads.get("bias"),
            None if dx is None else as_rows(dx),
            relu=self.relu,
            accumulate=ctx.accumulate,
        )
        return (dx,)


@dataclass(frozen=True)
class ElementwiseLayer(Layer):
    """A layer of one input whose output has its shape, with one operation an element."""

    def shape(self, inputs):
        return shapes.single(self, inputs)

    def flops(self, inputs):
        return shapes.element_count(inputs[0])


@dataclass(frozen=True)
class Activation(ElementwiseLayer):
    """y = f(x), f by :meth:`ringtrain.ops.base.Ops.activation`"""

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        computed = cls.forward is Activation.forward and cls.function is Activation.function
        if computed and cls.__name__.lower() not in ACTIVATIONS:
            raise TypeError(
                f"activation {cls.__name__} is none of {', '.join(ACTIVATIONS)}: write its forward and backward"
            )

    @property
    def function(self) -> str:
        """The name of f among :data:`ringtrain.ops.base.ACTIVATIONS`."""
        return type(self).__name__.lower()

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", x.shape)
        ctx.ops.activation(self.function, x, y)
        return y, (x, y)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, y = tape
        ctx.ops.activation_back(self.function, x, y, dy, dy)
        return (dy,)


@dataclass(frozen=True)
class Sigmoid(Activation):
    """y = 1/(1 + e^-x)"""


@dataclass(frozen=True)
class Tanh(Activation):
    """y = tanh(x)"""


@dataclass(frozen=True)
class SiLU(Activation):
    """y = x/(1 + e^-x)"""


@dataclass(frozen=True)
class GELU(Activation):
    """y = x · Φ(x), with the standard normal distribution Φ, or its approximation by tanh. Source: Hendrycks & Gimpel
    2016; torch.nn.GELU"""

    approximate: str = setting(str, "none", choices=("none", "tanh"))

    @property
    def function(self) -> str:
        return "gelu" if self.approximate == "none" else "gelu_tanh"


@dataclass(frozen=True)
class ReLU(ElementwiseLayer):
    """y = max(x, 0)"""

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", x.shape)
        ctx.ops.relu(x, y)
        return y, y

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        ctx.ops.relu_back(tape, dy, dy)
        return (dy,)


@dataclass(frozen=True)
class Dropout(ElementwiseLayer):
    """Each element is zero with probability ``rate``, else divided by 1 - rate; in evaluation y = x. The choice depends
    on seed, iteration, layer, example and element alone: not on the rank, nor the place in the batch."""

    rate: float = number(0.5, low=0, below=1)

    def _draw(self, ctx, x, array: str):
        y = ctx.space.shared(f"{self.name}.{array}", x.shape)
        ctx.ops.dropout(x, y, ctx.examples, ctx.key, name_key(self.name), self.rate)
        return y

    def forward(self, ctx, weights, xs):
        (x,) = xs
        return (self._draw(ctx, x, "y") if ctx.training and self.rate else x), None

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return (self._draw(ctx, dy, "dx") if ctx.training and self.rate else dy,)


@dataclass(frozen=True)
class Flatten(Layer):
    """The elements of an example in one row: [N,H,W,C] → [N,H·W·C]. A view, not a copy."""

    def shape(self, inputs):
        return (shapes.element_count(shapes.single(self, inputs)),)

    def forward(self, ctx, weights, xs):
        (x,) = xs
        return x.reshape((x.shape[0], shapes.element_count(x.shape[1:]))), x.shape

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return (dy.reshape(tape),)


@dataclass(frozen=True)
class Add(Fusable):
    """The sum of its inputs, which have one shape."""

    def shape(self, inputs):
        checked = shapes.several(self, inputs)
        if len(set(checked)) > 1:
            raise shapes.misfit(self, inputs, "inputs of the same shape")
        return checked[0]

    def flops(self, inputs):
        return (len(inputs) - 1) * shapes.element_count(inputs[0])

    def forward(self, ctx, weights, xs):
        y, total = ctx.space.shared(f"{self.name}.y", xs[0].shape), xs[0]
        for i, x in enumerate(xs[1:], 2):
            ctx.ops.add(total, x, y, relu=self.relu and i == len(xs))
            total = y
        return y, y

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        if self.relu:
            ctx.ops.relu_back(tape, dy, dy)
        # The first receiver takes dy itself, the others a copy: no two may share memory.
        first = wanted.index(True)
        return [self._part(ctx, dy, i, i == first) if want else None for i, want in enumerate(wanted)]

    def _part(self, ctx, dy, i: int, itself: bool):
        if itself:
            return dy
        dx = ctx.space.shared(f"{self.name}.dx{i}", dy.shape)
        ctx.ops.copy(dy, dx)
        return dx


@dataclass(frozen=True)
class Concat(Layer):
    """Its inputs beside one another, along the channels (or features).

    Shapes: x_i [N,...,C_i] → y [N,...,sum C_i]"""

    def shape(self, inputs):
        checked = shapes.several(self, inputs)
        if len({shape[:-1] for shape in checked}) > 1:
            raise shapes.misfit(self, inputs, "inputs that differ in their channels only")
        return (*checked[0][:-1], sum(shape[-1] for shape in checked))

    def forward(self, ctx, weights, xs):
        widths = [x.shape[-1] for x in xs]
        y = ctx.space.shared(f"{self.name}.y", (*xs[0].shape[:-1], sum(widths)))
        ctx.ops.concat(xs, y)
        return y, widths

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        # All parts are cut out, wanted or not: the operation derives the cuts from their widths.
        dxs = [ctx.space.shared(f"{self.name}.dx{i}", (*dy.shape[:-1], width)) for i, width in enumerate(tape)]
        ctx.ops.concat_back(dy, dxs)
        return [dx if want else None for dx, want in zip(dxs, wanted, strict=True)]
