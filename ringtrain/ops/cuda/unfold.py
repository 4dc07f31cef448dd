"""Windows as a matrix, and back: ``sources/unfold.cu``. The backward end of layers that multiply it."""

from ringtrain.ops.cuda.channels import unfinish
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
