"""The backward end of a layer: the mask of max(·, 0) and the gradient of a bias. ``sources/channels.cu``."""

from ringtrain.ops.cuda.columns import CudaColumns, cut_columns, vector_of
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.elementwise import relu_back


def unfinish(device: Device, dy, y, db_K, relu: bool, accumulate: bool) -> None:
    """Mask dy by y > 0 with ``relu``, in place; db = sum of dy over rows, or is None. dy and y are [..., K]."""
    if db_K is None:
        if relu:
            relu_back(device, y, dy, dy)
    elif dy.size:
        _sum(device, dy, y, db_K, relu, accumulate)
    elif not accumulate:
        device.runtime.clear(db_K, device.stream)


def _sum(device: Device, dy, y, db_K, relu, accumulate):
    columns = channel_columns(device, dy, y)
    partial = device.scratch("sums of slices", columns.partial(1), device.real)
    tickets = device.tickets(columns.blocks[1])
    arguments = y if relu else None, dy, partial, tickets, db_K, relu, accumulate
    launch(device, "channels", "bias_sums", columns, *arguments)


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
