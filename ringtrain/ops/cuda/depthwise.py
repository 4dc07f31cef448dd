"""Depthwise convolution along a line: ``sources/depthwise.cu``."""

from ringtrain.ops.cuda.channels import unfinish
from ringtrain.ops.cuda.columns import BLOCK, WARP
from ringtrain.ops.cuda.device import Device


def depthwise_line(device: Device, x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
    sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
    device.each(_kernel(device, "forward"), y_NPC.size, x_NLC, w_SC, b_C, y_NPC, *sizes, relu)


def depthwise_line_back(
    device: Device, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
):
    sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
    unfinish(device, dy_NPC, y_NPC, db_C, relu, accumulate)
    taps, channels = w_SC.shape
    blocks, threads = (taps, -(-channels // WARP)), (WARP, BLOCK // WARP)
    _kernel(device, "weights")(blocks, threads, device.stream, x_NLC, dy_NPC, dw_SC, *sizes, accumulate)
    if dx_NLC is not None:
        device.each(_kernel(device, "back"), dx_NLC.size, dy_NPC, w_SC, dx_NLC, *sizes)


def _kernel(device: Device, function):
    return device.kernels("depthwise", function)
