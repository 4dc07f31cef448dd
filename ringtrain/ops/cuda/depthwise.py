"""Depthwise convolution along a line: ``sources/depthwise.cu``."""

from ringtrain.ops.cuda.channels import CudaChannels
from ringtrain.ops.cuda.columns import BLOCK, WARP
from ringtrain.ops.cuda.device import Device


class Depthwise:
    """Depthwise convolution along a line, and its gradients."""

    def __init__(self, device: Device):
        self._device, self._channels = device, CudaChannels(device)

    def depthwise_line(self, x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
        sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
        self._device.each(self._kernel("forward"), y_NPC.size, x_NLC, w_SC, b_C, y_NPC, *sizes, relu)

    def depthwise_line_back(
        self, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
    ):
        sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
        self._channels.unfinish(dy_NPC, y_NPC, db_C, relu, accumulate)
        taps, channels = w_SC.shape
        blocks, threads = (taps, -(-channels // WARP)), (WARP, BLOCK // WARP)
        self._kernel("weights")(blocks, threads, self._device.stream, x_NLC, dy_NPC, dw_SC, *sizes, accumulate)
        if dx_NLC is not None:
            self._device.each(self._kernel("back"), dx_NLC.size, dy_NPC, w_SC, dx_NLC, *sizes)

    def _kernel(self, function):
        return self._device.kernels("depthwise", function)
