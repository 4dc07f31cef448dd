"""Larger images: ``sources/upsample.cu``."""

from ringtrain.ops.cuda.device import Device


class Upsampling:
    """The enlargement of images, and its gradient."""

    def __init__(self, device: Device):
        self._device = device

    def upsample(self, x_NHWC, y_NPQC, bilinear=False):
        self._each("upsample", y_NPQC, x_NHWC, y_NPQC, x_NHWC, y_NPQC, bilinear)

    def upsample_back(self, dy_NPQC, dx_NHWC, bilinear=False):
        self._each("upsample_back", dx_NHWC, dy_NPQC, dx_NHWC, dx_NHWC, dy_NPQC, bilinear)

    def _each(self, function, made, source, target, small, large, bilinear):
        kernel, scale = self._device.kernels("upsample", function), large.shape[1] // small.shape[1]
        self._device.each(kernel, made.size, source, target, *small.shape, scale, bilinear)
