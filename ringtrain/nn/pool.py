"""Smaller and larger images: the maximum or the mean of windows, the mean over all spatial axes, and interpolation."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ringtrain.nn import shapes
from ringtrain.nn.base import Layer
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
    """Pooling with windows that may extend past the edge, but never lie in padding alone. ``ceil``: Caffe's rule: a
    last window that is only partly inside counts.

    Shapes: x [N,H,W,C] → y [N,P,Q,C]"""

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
        return (*shapes.windows(self, self.geometry, inputs), inputs[0][2])

    def flops(self, inputs):
        return shapes.element_count(self.shape(inputs)) * self.kernel**2


@dataclass(frozen=True)
class MaxPool(WindowPool):
    """The maximum of each window."""

    kernel: int = whole(1, most=15)

    def forward(self, ctx, weights, xs):
        (x_NHWC,) = xs
        out = (x_NHWC.shape[0], *self.shape([x_NHWC.shape[1:]]))
        y_NPQC = ctx.space.shared(f"{self.name}.y", out)
        where_NPQC = ctx.space(f"{self.name}.where", out, "uint8")
        ctx.ops.max_pool(x_NHWC, y_NPQC, where_NPQC, self.geometry)
        return y_NPQC, (where_NPQC, x_NHWC.shape)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        where_NPQC, shape = tape
        dx_NHWC = ctx.space.shared(f"{self.name}.dx", shape)
        ctx.ops.max_pool_back(dy, where_NPQC, dx_NHWC, self.geometry)
        return (dx_NHWC,)


@dataclass(frozen=True)
class AvgPool(WindowPool, Resampling):
    """The mean of each window; as in Caffe, its divisor counts padding, but no element beyond it."""

    operation = "avg_pool"

    @property
    def options(self):
        return (self.geometry,)


@dataclass(frozen=True)
class GlobalAvgPool(Resampling):
    """The mean over all spatial axes.

    Shapes: x [N,L,C], [N,H,W,C] or [N,D,H,W,C] → y [N,C]"""

    operation = "global_avg_pool"

    def shape(self, inputs):
        shape = shapes.single(self, inputs)
        if len(shape) < 2:
            raise shapes.misfit(
                self, inputs, "spatial axes before its channels: a sequence LxD, an image HxWxC or a volume DxHxWxC"
            )
        return shape[-1:]

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
