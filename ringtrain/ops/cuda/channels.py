"""The backward end of a layer: the mask of max(·, 0) and the gradient of a bias. ``sources/channels.cu``."""

from ringtrain.ops.cuda.columns import CudaColumns, cut_columns, vector_of
from ringtrain.ops.cuda.device import Device


class CudaChannels:
    """The mask of max(·, 0) and the gradient of a bias."""

    def __init__(self, device: Device):
        self._device = device

    def unfinish(self, dy, y, db_K, relu: bool, accumulate: bool) -> None:
        """Mask dy by y > 0 with ``relu``, in place; db = sum of dy over rows, or is None. dy and y are [..., K]."""
        if db_K is None:
            if relu:
                self._mask(dy, y)
        elif dy.size:
            self._sum(dy, y, db_K, relu, accumulate)
        elif not accumulate:
            self._device.runtime.clear(db_K, self._device.stream)

    def _sum(self, dy, y, db_K, relu, accumulate):
        columns = channel_columns(self._device, dy, y)
        partial = self._device.scratch("sums of slices", columns.partial(1), self._device.real)
        tickets = self._device.tickets(columns.blocks[1])
        given = y if relu else None, dy, partial, tickets, db_K, relu, accumulate
        launch(self._device, "channels", "bias_sums", columns, *given)

    def _mask(self, dy, y):
        kernel = self._device.kernels("elementwise", "relu_back")
        self._device.each(kernel, y.size, y, dy, dy, y.size, per_thread=16 // y.dtype.itemsize)


def channel_columns(device: Device, *arrays, groups_of: int | None = None) -> CudaColumns:
    """Return the slices of arrays [..., C] of one shape, in groups of ``groups_of`` examples, or in one group. None: no
    array.
    """
    shape = arrays[0].shape
    channels, pixels = shape[-1], arrays[0].size // (shape[0] * shape[-1])
    group = shape[0] if groups_of is None else groups_of
    vector = vector_of(device.runtime, channels, *(x for x in arrays if x is not None))
    return cut_columns(shape[0] * pixels, group * pixels, channels, vector)


def launch(device: Device, source: str, function: str, columns: CudaColumns, *arguments) -> None:
    """Launch a kernel that goes over the rows."""
    kernel = device.kernels(source, function)
    kernel(columns.blocks, columns.threads, device.stream, *arguments, *columns.cut, columns.wide)


def finish(device: Device, source: str, function: str, columns: CudaColumns, *arguments) -> None:
    """Launch a kernel that adds the sums of the slices."""
    kernel = device.kernels(source, function)
    kernel(columns.finish_blocks, columns.finish_threads, device.stream, *arguments, *columns.cut)
