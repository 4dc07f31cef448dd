"""Local response normalisation: ``sources/response.cu``."""

from ringtrain.ops.cuda.columns import vector_of
from ringtrain.ops.cuda.device import Device


def lrn_across(device: Device, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k):
    _across(device, "lrn_across", x_NHWC, y_NHWC, scale_NHWC, rest=(size, alpha, beta, k))


def lrn_across_back(device: Device, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
    arrays = x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC
    _across(device, "lrn_across_back", *arrays, rest=(size, alpha, beta))


def lrn_within(device: Device, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta):
    _within(device, "lrn_within", scale_NHWC, x_NHWC, y_NHWC, scale_NHWC, rest=(size, alpha, beta))


def lrn_within_back(device: Device, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
    arrays = x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC
    _within(device, "lrn_within_back", scale_NHWC, *arrays, rest=(size, alpha, beta))


def _across(device: Device, function, x, *arrays, rest):
    kernel = device.kernels("response", function)
    device.each(kernel, x.size, x, *arrays, x.size, x.shape[-1], *rest)


def _within(device: Device, function, scale, *arrays, rest):
    """Launch a kernel over as many channels at a time as fit in 16 bytes of ``scale``, whose type is the widest."""
    vector = vector_of(device.runtime, scale.shape[-1], scale, *arrays)
    kernel = device.kernels("response", function)
    arguments = *arrays, *scale.shape, *rest, int(vector > 1)
    device.each(kernel, scale.size, *arguments, per_thread=vector)
