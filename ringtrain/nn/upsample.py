"""Larger images, without parameters."""

from dataclasses import dataclass

from ringtrain.nn import shapes
from ringtrain.nn.base import Layer
from ringtrain.nn.settings import setting, whole


@dataclass(frozen=True)
class Upsample(Layer):
    """Images ``scale`` times as high and wide: "nearest" repeats pixels, "bilinear" interpolates between their centres.

    Shapes: x [N,H,W,C] → y [N,scale·H,scale·W,C]
    Source: PyTorch's Upsample, align_corners=False
    """

    scale: int = whole(1)
    mode: str = setting(str, "nearest", choices=("nearest", "bilinear"))

    def shape(self, inputs):
        H, W, C = shapes.image(self, inputs)
        return H * self.scale, W * self.scale, C

    def flops(self, inputs):
        return 7 * shapes.element_count(self.shape(inputs)) if self.mode == "bilinear" else 0

    def forward(self, ctx, weights, xs):
        (x_NHWC,) = xs
        y_NPQC = ctx.space.shared(f"{self.name}.y", (x_NHWC.shape[0], *self.shape([x_NHWC.shape[1:]])))
        ctx.ops.upsample(x_NHWC, y_NPQC, self.mode == "bilinear")
        return y_NPQC, x_NHWC.shape

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        dx_NHWC = ctx.space.shared(f"{self.name}.dx", tape)
        ctx.ops.upsample_back(dy, dx_NHWC, self.mode == "bilinear")
        return (dx_NHWC,)
