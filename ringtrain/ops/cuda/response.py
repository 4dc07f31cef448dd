"""Local response normalisation: ``sources/response.cu``."""

from ringtrain.ops.cuda.columns import vector_of
from ringtrain.ops.cuda.device import Device


class Response:
    """Local response normalisation."""

    def __init__(self, device: Device):
        self._device = device

    def lrn_across(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k):
        self._across("lrn_across", x_NHWC, y_NHWC, scale_NHWC, rest=(size, alpha, beta, k))

    def lrn_across_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        arrays = x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC
        self._across("lrn_across_back", *arrays, rest=(size, alpha, beta))

    def lrn_within(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta):
        self._within("lrn_within", scale_NHWC, x_NHWC, y_NHWC, scale_NHWC, rest=(size, alpha, beta))

    def lrn_within_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        arrays = x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC
        self._within("lrn_within_back", scale_NHWC, *arrays, rest=(size, alpha, beta))

    def _across(self, function, x, *arrays, rest):
        kernel = self._device.kernels("response", function)
        self._device.each(kernel, x.size, x, *arrays, x.size, x.shape[-1], *rest)

    def _within(self, function, scale, *arrays, rest):
        """Launch a kernel over as many channels at a time as fit in 16 bytes of ``scale``, whose type is the widest."""
        vector = vector_of(self._device.runtime, scale.shape[-1], scale, *arrays)
        kernel = self._device.kernels("response", function)
        given = *arrays, *scale.shape, *rest, int(vector > 1)
        self._device.each(kernel, scale.size, *given, per_thread=vector)
