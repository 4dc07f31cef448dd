"""Activations: a function of each element alone. ReLU, which other layers can end with, is in nn.layers."""

from dataclasses import dataclass

from ringtrain.nn import shapes
from ringtrain.nn.base import Layer
from ringtrain.nn.settings import setting


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
