"""Windows as a matrix, and back: ``sources/unfold.cu``. The backward end of layers that multiply it."""

from ringtrain.ops.cuda.channels import CudaChannels
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.geometry import window_sizes


class Unfold:
    """The operations on matrices of windows."""

    def __init__(self, device: Device):
        self._device, self._channels = device, CudaChannels(device)

    def columns(self, x, columns, geometry, group=0):
        kernel = self._device.kernels("unfold", "unfold")
        self._device.each(kernel, columns.size, x, columns, columns.size, *_sizes(x, geometry, group))

    def columns_back(self, columns, b_C, x, geometry, group=0, relu=False):
        kernel, count = self._device.kernels("unfold", "fold"), x.size // geometry.groups
        self._device.each(kernel, count, columns, b_C, x, count, *_sizes(x, geometry, group), relu)

    def bias_back(self, y, dy, db_C, relu=False, accumulate=False):
        self._channels.unfinish(dy, y, db_C, relu, accumulate)


def _sizes(x, geometry, group):
    _, *extents, channels, groups, o, p, q, t, r, s, stride, front, top, left = window_sizes(x.shape, geometry)
    depth = channels // groups
    return *extents, channels, o, p, q, t, r, s, stride, front, top, left, group * depth, depth
