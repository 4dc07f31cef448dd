"""Smaller and larger images: the maximum or the mean of windows, the mean over all spatial axes, and interpolation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ringtrain.nn import shapes
from ringtrain.nn.base import Layer, Shape
from ringtrain.nn.settings import setting, whole
from ringtrain.ops.base import PoolGeometry


@dataclass(frozen=True)
class Resampling(Layer):
    """A linear map of pixels: ``operation`` of Ops, whose gradient is the operation of this name with _back."""

    operation: ClassVar[str]

    @property
    def options(self) -> tuple[Any, ...]:
        """The last arguments of both operations."""
        return ()

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", (x.shape[0], *self.shape([x.shape[1:]])))
        getattr(ctx.ops, self.operation)(x, y, *self.options)
        return y, x.shape

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        dx = ctx.space.shared(f"{self.name}.dx", tape)
        getattr(ctx.ops, f"{self.operation}_back")(dy, dx, *self.options)
        return (dx,)


@dataclass(frozen=True)
class WindowPool(Layer):
    """Pooling with windows, as long along each spatial axis, that may extend past the edge, but never lie in padding
    alone. ``ceil``: Caffe's rule: a last window that is only partly inside counts.

    Operations pool images. A line is one of width 1, and a volume is pooled within its planes and then across them,
    which gives the same maxima and means. ``keeps``: whether the gradient needs the place of each result.

    Shapes: x [N,L,C], [N,H,W,C] or [N,D,H,W,C] → y likewise"""

    operation: ClassVar[str]
    keeps: ClassVar[bool] = False
    kernel: int = whole(1)
    stride: int = whole(1)
    pad: int = whole(0, 0)
    ceil: bool = setting(bool, False)

    @property
    def geometry(self) -> PoolGeometry:
        return PoolGeometry(self.kernel, self.stride, self.pad, self.ceil)

    def shape(self, inputs):
        if self.pad >= self.kernel:
            raise shapes.misfit(self, inputs, f"pad below kernel = {self.kernel}, but pad = {self.pad}")
        axes = len(shapes.grid(self, inputs)) - 1
        return (*shapes.windows(self, self.geometry, inputs, axes), inputs[0][-1])

    def flops(self, inputs):
        return shapes.element_count(self.shape(inputs)) * self.kernel ** (len(inputs[0]) - 1)

    def _turns(self, shape: Shape) -> list[tuple[Shape, Shape, int]]:
        """Return the shapes of images that x of ``shape`` is pooled as, one after another: before, after, and what
        undoes that a mean's divisor counts the padding of an axis that is not there."""
        n, *extents, c = shape
        pooled = self.shape([shape[1:]])[:-1]
        if len(extents) == 2:
            return [(shape, (n, *pooled, c), 1)]
        planes, line = n * extents[0], math.prod(pooled[1:]) * c
        turns = [((planes, *extents[1:], c), (planes, *pooled[1:], c), 1)] if len(extents) == 3 else []
        factor = 1 if self.keeps else min(self.kernel, 1 + 2 * self.pad)
        return [*turns, ((n, extents[0], 1, line), (n, pooled[0], 1, line), factor)]

    def forward(self, ctx, weights, xs):
        (x,), tapes = xs, []
        y = x
        for i, (before, after, factor) in enumerate(self._turns(x.shape), 1):
            pooled = ctx.space.shared(f"{self.name}.y{i}", after)
            tapes.append([ctx.space(f"{self.name}.where{i}", after, "uint8")] if self.keeps else [])
            getattr(ctx.ops, self.operation)(y.reshape(before), pooled, *tapes[-1], self.geometry)
            if factor > 1:
                ctx.ops.scale(pooled, factor)
            y = pooled
        return y.reshape((x.shape[0], *self.shape([x.shape[1:]]))), (x.shape, tapes)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        shape, tapes = tape
        for i, (before, after, factor) in reversed(list(enumerate(self._turns(shape), 1))):
            dx = ctx.space.shared(f"{self.name}.dx{i}", before)
            getattr(ctx.ops, f"{self.operation}_back")(dy.reshape(after), *tapes[i - 1], dx, self.geometry)
            if factor > 1:
                ctx.ops.scale(dx, factor)
            dy = dx
        return (dy.reshape(shape),)


@dataclass(frozen=True)
class MaxPool(WindowPool):
    """The maximum of each window."""

    operation, keeps = "max_pool", True
    kernel: int = whole(1, most=15)


@dataclass(frozen=True)
class AvgPool(WindowPool):
    """The mean of each window; as in Caffe, its divisor counts padding, but no element beyond it."""

    operation = "avg_pool"


@dataclass(frozen=True)
class GlobalAvgPool(Resampling):
    """The mean over all spatial axes.

    Shapes: x [N,L,C], [N,H,W,C] or [N,D,H,W,C] → y [N,C]"""

    operation = "global_avg_pool"

    def shape(self, inputs):
        return shapes.grid(self, inputs)[-1:]

    def flops(self, inputs):
        return shapes.element_count(inputs[0])


@dataclass(frozen=True)
class Upsample(Resampling):
    """Images ``scale`` times as high and wide: "nearest" repeats pixels, "bilinear" interpolates between their centres.

    Shapes: x [N,H,W,C] → y [N,scale·H,scale·W,C]
    Source: PyTorch's Upsample, align_corners=False"""

    operation = "upsample"
    scale: int = whole(1)
    mode: str = setting(str, "nearest", choices=("nearest", "bilinear"))

    def shape(self, inputs):
        H, W, C = shapes.image(self, inputs)
        return H * self.scale, W * self.scale, C

    def flops(self, inputs):
        return 7 * shapes.element_count(self.shape(inputs)) if self.mode == "bilinear" else 0

    @property
    def options(self):
        return (self.mode == "bilinear",)
