"""Larger images, without parameters."""

from dataclasses import dataclass

from ringtrain.nn import shapes
from ringtrain.nn.pool import Resampling
from ringtrain.nn.settings import setting, whole


@dataclass(frozen=True)
class Upsample(Resampling):
    """Images ``scale`` times as high and wide: "nearest" repeats pixels, "bilinear" interpolates between their centres.

    Shapes: x [N,H,W,C] → y [N,scale·H,scale·W,C]
    Source: PyTorch's Upsample, align_corners=False
    """

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
