"""Rows × channels cut into slices of rows: the basis of sums over the rows of each channel, as
of the gradient of a bias: ``sources/channels.cu``.

``sources/columns.cuh`` draws the slices. They depend only on sizes, never on the device, so that the order of additions
is the same on all devices."""

from dataclasses import dataclass
from functools import lru_cache

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.elementwise import relu_back

BLOCK = 256  # the most threads of a block that goes over rows
WARP = 32
FEW_ROWS = 16  # of a thread, at the least: fewer cost more in adding up than they gain in parallel
MANY_BLOCKS = 2048  # of a group: more do not make a large device faster
VECTOR_BYTES = 16
FINISH_CHANNELS = 8  # of a block that adds up slices: 32 bytes of float32, the least that memory moves
FINISH_LANES = 128


@dataclass(frozen=True, slots=True)
class CudaColumns:
    """The slices: ``rows`` in groups of ``group_rows``, each of ``slices`` slices of ``slice_rows``; ``wide``: by 16
    bytes."""

    rows: int
    group_rows: int
    slices: int
    slice_rows: int
    channels: int
    wide: int
    threads: tuple[int, int]
    blocks: tuple[int, int]

    @property
    def groups(self) -> int:
        return -(-self.rows // self.group_rows)

    @property
    def cut(self) -> tuple:
        """The kernels' last arguments, except ``wide``."""
        return self.rows, self.group_rows, self.slices, self.slice_rows, self.channels

    def partial(self, quantities: int) -> int:
        """Return the number of partial sums of all slices."""
        return self.groups * self.slices * quantities * self.channels

    @property
    def finish_blocks(self) -> tuple[int, int]:
        return self.groups, -(-self.channels // FINISH_CHANNELS)

    @property
    def finish_threads(self) -> tuple[int, int]:
        lanes = WARP // FINISH_CHANNELS
        while lanes < min(self.slices, FINISH_LANES):
            lanes *= 2
        return FINISH_CHANNELS, lanes


@lru_cache(maxsize=1024)
def cut_columns(rows: int, group_rows: int, channels: int, vector: int) -> CudaColumns:
    """Return the slices of at least one row. ``vector``: channels that a thread takes at once; a divisor of the
    channels."""
    group_rows = min(group_rows, rows)
    vectors = channels // vector
    columns = -(-vectors // WARP)
    width = -(-vectors // columns)
    height = min(BLOCK // width, group_rows)
    of_thread = max(FEW_ROWS, -(-group_rows * columns // (height * MANY_BLOCKS)))
    slice_rows = height * of_thread
    slices, groups = -(-group_rows // slice_rows), -(-rows // group_rows)
    blocks = groups * slices, columns
    return CudaColumns(rows, group_rows, slices, slice_rows, channels, int(vector > 1), (width, height), blocks)


def tile_columns(rows: int, group_rows: int, channels: int, slice_rows: int, slices: int) -> CudaColumns:
    """Return the slices that tiles of a product are: ``slices`` a group, for kernels that add them."""
    return CudaColumns(rows, group_rows, slices, slice_rows, channels, 0, (0, 0), (0, 0))


def channel_vector(channels: int, itemsize: int) -> int:
    """Return the number of channels that a thread takes at once where arrays are aligned: 16 bytes, or one channel."""
    many = VECTOR_BYTES // itemsize
    return 1 if channels % many else many


def vector_of(runtime, channels: int, *arrays) -> int:
    """Return the number of channels that a thread can take at once: 16 bytes of the first array's type, if all rows of
    all arrays begin at a multiple of that many elements; otherwise one."""
    many = channel_vector(channels, arrays[0].dtype.itemsize)
    return 1 if any(runtime.address(x) % (many * x.dtype.itemsize) for x in arrays) else many


def unfinish(device: Device, dy, y, db_K, relu: bool, accumulate: bool) -> None:
    """Mask dy by y > 0 with ``relu``, in place; db = sum of dy over rows, or is None. dy and y are [..., K]."""
    if db_K is None:
        if relu:
            relu_back(device, y, dy, dy)
    elif dy.size:
        columns = channel_columns(device, dy, y)
        partial = device.scratch("sums of slices", columns.partial(1), device.real)
        tickets = device.tickets(columns.blocks[1])
        arguments = y if relu else None, dy, partial, tickets, db_K, relu, accumulate
        launch(device, "channels", "bias_sums", columns, *arguments)
    elif not accumulate:
        device.runtime.clear(db_K, device.stream)


def channel_columns(device: Device, *arrays, groups_of: int | None = None) -> CudaColumns:
    """Return the slices of arrays [..., C] of one shape, in groups of ``groups_of`` examples, or in one group. None: no
    array."""
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
