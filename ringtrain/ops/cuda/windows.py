"""Windows as a matrix, and back; larger images; depthwise convolution along a line; the backward end of a bias:
``sources/unfold.cu``, ``upsample.cu`` and ``depthwise.cu``."""

from ringtrain.ops.cuda.channels import BLOCK, WARP, unfinish
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.geometry import window_sizes


def columns(device: Device, x, columns, geometry, group=0):
    kernel = device.kernels("unfold", "unfold")
    device.each(kernel, columns.size, x, columns, columns.size, *_sizes(x, geometry, group))


def columns_back(device: Device, columns, b_C, x, geometry, group=0, relu=False):
    kernel, count = device.kernels("unfold", "fold"), x.size // geometry.groups
    device.each(kernel, count, columns, b_C, x, count, *_sizes(x, geometry, group), relu)


def bias_back(device: Device, y, dy, db_C, relu=False, accumulate=False):
    unfinish(device, dy, y, db_C, relu, accumulate)


def _sizes(x, geometry, group):
    _, *extents, channels, groups, o, p, q, t, r, s, stride, front, top, left = window_sizes(x.shape, geometry)
    depth = channels // groups
    return *extents, channels, o, p, q, t, r, s, stride, front, top, left, group * depth, depth


def upsample(device: Device, x_NHWC, y_NPQC, bilinear=False):
    _resample(device, "upsample", y_NPQC, x_NHWC, y_NPQC, x_NHWC, y_NPQC, bilinear)


def upsample_back(device: Device, dy_NPQC, dx_NHWC, bilinear=False):
    _resample(device, "upsample_back", dx_NHWC, dy_NPQC, dx_NHWC, dx_NHWC, dy_NPQC, bilinear)


def _resample(device: Device, function, output, source, target, small, large, bilinear):
    kernel, scale = device.kernels("upsample", function), large.shape[1] // small.shape[1]
    device.each(kernel, output.size, source, target, *small.shape, scale, bilinear)


def depthwise_line(device: Device, x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
    sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
    device.each(device.kernels("depthwise", "forward"), y_NPC.size, x_NLC, w_SC, b_C, y_NPC, *sizes, relu)


def depthwise_line_back(
    device: Device, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
):
    sizes = *x_NLC.shape, y_NPC.shape[1], geometry.kernel, geometry.stride, geometry.pad
    unfinish(device, dy_NPC, y_NPC, db_C, relu, accumulate)
    taps, channels = w_SC.shape
    blocks, threads = (taps, -(-channels // WARP)), (WARP, BLOCK // WARP)
    device.kernels("depthwise", "weights")(blocks, threads, device.stream, x_NLC, dy_NPC, dw_SC, *sizes, accumulate)
    if dx_NLC is not None:
        device.each(device.kernels("depthwise", "back"), dx_NLC.size, dy_NPC, w_SC, dx_NLC, *sizes)
