"""Larger images: ``sources/upsample.cu``."""

from ringtrain.ops.cuda.device import Device


def upsample(device: Device, x_NHWC, y_NPQC, bilinear=False):
    _each(device, "upsample", y_NPQC, x_NHWC, y_NPQC, x_NHWC, y_NPQC, bilinear)


def upsample_back(device: Device, dy_NPQC, dx_NHWC, bilinear=False):
    _each(device, "upsample_back", dx_NHWC, dy_NPQC, dx_NHWC, dx_NHWC, dy_NPQC, bilinear)


def _each(device: Device, function, output, source, target, small, large, bilinear):
    kernel, scale = device.kernels("upsample", function), large.shape[1] // small.shape[1]
    device.each(kernel, output.size, source, target, *small.shape, scale, bilinear)
