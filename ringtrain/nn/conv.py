"""Convolution: what all have in common, and of images."""

from dataclasses import dataclass, field
from typing import ClassVar

from ringtrain.nn import shapes
from ringtrain.nn.base import Fusable
from ringtrain.nn.settings import BIAS, HE, WEIGHT, ZERO, ParameterSpec, whole
from ringtrain.ops.base import ConvGeometry, Ops
from ringtrain.ops.normalised import Measured


@dataclass(frozen=True)
class SpatialConvolution(Fusable):
    """Cross-correlation over ``AXES`` spatial axes with ``channels`` kernels, as long along each axis, in ``groups``.

    Shapes: weight [kernel, ..., C/groups, K], bias [K]"""

    channels: int = whole(1)
    kernel: int = whole(1)
    stride: int = whole(1, 1)
    pad: int = whole(0, 0)
    groups: int = whole(1, 1)
    weight: ParameterSpec = field(default=HE, metadata=WEIGHT)
    bias: ParameterSpec | None = field(default=ZERO, metadata=BIAS)

    AXES: ClassVar[int]

    @property
    def geometry(self) -> ConvGeometry:
        return ConvGeometry(self.kernel, self.stride, self.pad, self.groups)

    def shape(self, inputs):
        C = shapes.spatial(self, inputs, self.AXES)[-1]
        if C % self.groups or self.channels % self.groups:
            wanted = f"channels in and out ({C} and {self.channels}) that groups = {self.groups} divides"
            raise shapes.misfit(self, inputs, wanted)
        return (*shapes.windows(self, self.geometry, inputs, self.AXES), self.channels)

    def _depth(self, inputs) -> int:
        """Elements of a window, of one group."""
        return self.kernel**self.AXES * inputs[0][-1] // self.groups

    def parameters(self, inputs):
        C, K = shapes.spatial(self, inputs, self.AXES)[-1], self.channels
        shape = (*[self.kernel] * self.AXES, C // self.groups, K)
        fans = {"fan_in": self._depth(inputs), "fan_out": self.kernel**self.AXES * K // self.groups}
        weight = self.weight.parameter("weight", shape, "weight", **fans)
        return (weight,) if self.bias is None else (weight, self.bias.parameter("bias", (K,), "bias"))

    def flops(self, inputs):
        return shapes.element_count(self.shape(inputs)) * (2 * self._depth(inputs) + (self.bias is not None))


@dataclass(frozen=True)
class Conv2D(SpatialConvolution):
    """Cross-correlation with ``channels`` square kernels, in ``groups``.

    ghost: examples of the ghost batches of the BatchNorm that alone reads y, whose moments are made with y where
    operations are ``fused``; 0: there is none. Not a key of model files (:mod:`ringtrain.nn.fuse`).

    Shapes: x [N,H,W,C] → y [N,P,Q,K]; weight [R,S,C/groups,K], bias [K]"""

    AXES = 2
    adds = True
    factors = ("weight",)
    ghost: int = field(default=0, kw_only=True)

    def variant(self, ops: Ops, count, inputs):
        return ops.conv2d_variant((count, *inputs[0]), self.parameters(inputs)[0].shape, self.geometry)

    def forward(self, ctx, weights, xs):
        (x_NHWC,) = xs
        y_NPQK = ctx.space.shared(f"{self.name}.y", (x_NHWC.shape[0], *self.shape([x_NHWC.shape[1:]])))
        arguments = x_NHWC, weights["weight"], weights.get("bias"), y_NPQK, self.geometry
        if not (self.ghost and ctx.makes_ghost_statistics):
            ctx.ops.conv2d(*arguments, relu=self.relu)
            return y_NPQK, (x_NHWC, y_NPQK)
        memory = ctx.space(f"{self.name}.moments", (ctx.ops.moment_parts(y_NPQK.shape, self.ghost),), ctx.ops.dtype)
        moments = ctx.ops.conv2d(*arguments, relu=self.relu, moments=memory, ghost=self.ghost)
        return y_NPQK if moments is None else Measured(y_NPQK, moments), (x_NHWC, y_NPQK)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x_NHWC, y_NPQK = tape
        add, dx_NHWC = not isinstance(wanted[0], bool), None
        if add:
            dx_NHWC = wanted[0]
        elif wanted[0]:
            dx_NHWC = ctx.space.shared(f"{self.name}.dx", x_NHWC.shape)
        gradients = grads["weight"], grads.get("bias"), dx_NHWC
        rest = {"relu": self.relu, "accumulate": ctx.accumulate, "add": add}
        ctx.ops.conv2d_back(x_NHWC, weights["weight"], y_NPQK, dy, *gradients, self.geometry, **rest)
        return (dx_NHWC,)
