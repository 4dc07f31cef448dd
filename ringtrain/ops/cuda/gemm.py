"""Matrix products: by our own kernels, and by cuBLAS.

Both are called alike: ``product(a, b, y, bias, relu, accumulate)`` with Matrix arguments. A y of the type of weights
gets the sums directly; otherwise bias and max(·, 0) come first, and then the sums are rounded. Without these two, y may
be added to. Our own kernels cut long sums of few tiles into slices, which the last block of a tile adds in order."""

from functools import partial

from ringtrain.arrays import Array
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.boxes import Boxes
from ringtrain.ops.cuda.choice import KernelVariant
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.kernels import Kernels
from ringtrain.ops.cuda.runtime import Matrix
from ringtrain.ops.cuda.tiles import THREADS, Tile, choose_tile, split_depth, worth
from ringtrain.ops.precision import RoundedWeights

RELU, WIDE_A, WIDE_B, WIDE_Y, ADD = 1, 2, 4, 8, 16
WIDE_BYTES = 16
ROUNDED_PER_THREAD = 4


def matrix(array, rows: int, columns: int, stride: int | None = None, start: int = 0) -> Matrix:
    return Matrix(array.reshape(-1), rows, columns, columns if stride is None else stride, start)


def turned(matrix: Matrix) -> Matrix:
    return Matrix(matrix.array, matrix.columns, matrix.rows, matrix.stride, matrix.start, not matrix.transposed)


def from_start(matrix: Matrix):
    """Return the array from the matrix's first element on."""
    return matrix.array[matrix.start :] if matrix.start else matrix.array


def is_wide(runtime, array, *strides: int) -> bool:
    """Whether rows that many elements apart all start at 16-byte addresses."""
    size = array.dtype.itemsize
    return runtime.address(array) % WIDE_BYTES == 0 and all(stride * size % WIDE_BYTES == 0 for stride in strides)


def rounded(device: Device, w: Array | RoundedWeights) -> Array:
    """Return ``w`` in the type of activations, kept until the next call; ``w`` itself if it has that type."""
    if isinstance(w, RoundedWeights):
        return w.rounded
    if device.real == device.active:
        return w
    result = device.scratch("rounded weights", w.size, device.active)
    kernel = device.kernels("matrix", "round_weights")
    device.each(kernel, w.size, w, result, w.size, per_thread=ROUNDED_PER_THREAD)
    return result


def _kernel_name(a: Matrix, b: Matrix) -> str:
    return f"gemm_{'t' if a.transposed else 'n'}{'t' if b.transposed else 'n'}"


class OwnProduct:
    """A product by our own kernels. ``kernels``: of the factors' type; ``cores``: by tensor cores; ``tile``: None for
    the one that suits the size."""

    def __init__(self, device: Device, kernels: Kernels, cores: bool, tile: Tile | None = None):
        self._device, self._kernels, self._cores, self._tile = device, kernels, cores, tile

    def __call__(self, a: Matrix, b: Matrix, y: Matrix, bias=None, relu=False, accumulate=False):
        """Multiply. ``accumulate``: y is added to."""
        rows, columns, depth = a.rows, b.columns, a.columns
        if not (rows and columns):
            return
        itemsize = self._kernels.act.itemsize
        tile = self._tile or choose_tile(rows, columns, itemsize)
        tiles = tile.count(rows, columns)
        count, each = split_depth(tiles, depth, itemsize)
        rounds = bias is not None or relu or y.array.dtype.name != self._kernels.real.name
        wide = WIDE_A * self._wide(a) + WIDE_B * self._wide(b) + WIDE_Y * self._wide(y)
        target, flags = from_start(y), RELU * relu + wide + ADD * accumulate
        parts = tickets = None
        if count > 1:
            parts = self._device.scratch("parts", count * rows * columns, self._kernels.real)
            tickets = self._device.tickets(tiles)
        kernel = self._kernels("gemm", _kernel_name(a, b), **tile.defines, CORES=int(self._cores))
        kernel(
            (tiles, 1, count), THREADS, self._device.stream, from_start(a), from_start(b),
            bias, *((target, None) if rounds else (None, target)), parts, tickets,
            rows, columns, depth, a.stride, b.stride, y.stride, each, flags, shared_bytes=tile.shared_bytes,
        )  # fmt: skip

    def _wide(self, matrix: Matrix) -> bool:
        return is_wide(self._device.runtime, from_start(matrix), matrix.stride)


class WgmmaProduct:
    """A product by wgmma, by one of its tiles. Factors that do not begin at 16 bytes are left to the usual kernels."""

    def __init__(self, device: Device, kernels: Kernels, tile: wgmma.WgmmaTile):
        self._device, self._kernels, self._tile = device, kernels, tile
        self._launches, self._usual = wgmma.TileLaunches(device, kernels, tile), OwnProduct(device, kernels, cores=True)

    def __call__(self, a: Matrix, b: Matrix, y: Matrix, bias=None, relu=False, accumulate=False):
        aligned = wgmma.is_aligned(self._device, from_start(a), from_start(b))
        if not (aligned and wgmma.is_whole(a.stride, b.stride) and a.rows and b.columns and a.columns):
            self._usual(a, b, y, bias, relu, accumulate)
            return
        name = _kernel_name(a, b)
        tiles, steps = self._tile.count(a.rows, b.columns), -(-a.columns // wgmma.STEP)
        maps = self._map(a, wgmma.ROWS, not a.transposed), self._map(b, self._tile.columns, b.transposed)
        sizes, target = (a.rows, b.columns, a.columns, y.stride), from_start(y)
        if bias is not None or relu or y.array.dtype.name != self._kernels.real.name:
            flags = RELU * relu + WIDE_Y * is_wide(self._device.runtime, target, y.stride) + ADD * accumulate
            self._launches.rounded("wgmma_gemm", name, tiles, *maps, bias, target, None, None, *sizes, flags)
            return
        self._launches.sums(
            "wgmma_gemm", name, tiles, steps,
            lambda parts: (*maps, None, None, target, parts, *sizes, ADD * accumulate),
            target, (1, a.rows, b.columns, y.stride), accumulate,
        )  # fmt: skip

    def _map(self, matrix: Matrix, rows: int, deep: bool):
        """Return the map of a factor whose panels have so many rows (or columns, of the right one)."""
        length, lines = (matrix.rows, matrix.columns) if matrix.transposed else (matrix.columns, matrix.rows)
        boxes = Boxes((length, lines, 1), (matrix.stride, matrix.stride * lines), wgmma.panel(rows, deep))
        return self._launches.map(from_start(matrix), boxes)


class BlasProduct:
    """A product by cuBLAS. ``precise``: float32 without TF32. Raises: Unable for any error of cuBLAS."""

    def __init__(self, device: Device, kernels: Kernels, precise: bool):
        self._device, self._kernels, self._precise = device, kernels, precise

    def __call__(self, a: Matrix, b: Matrix, y: Matrix, bias=None, relu=False, accumulate=False):
        if not (a.rows and b.columns):
            return
        runtime, stream = self._device.runtime, self._device.stream
        try:
            runtime.product(a, b, y, accumulate, self._precise, stream)
        except Exception as error:
            raise Unable(f"cuBLAS: {error}") from error
        if bias is not None or relu:
            kernel = self._kernels("matrix", "finish_rows")
            count = a.rows * b.columns
            self._device.each(kernel, count, from_start(y), bias, count, b.columns, y.stride, int(relu))


def by_cores(precise: bool, dtype) -> bool:
    """Whether products of this type use tensor cores: of 16 bits always, of float32 if TF32 is allowed."""
    return dtype.itemsize == 2 or (dtype.itemsize == 4 and not precise)


def products_of(device: Device, kernels: Kernels, rows: int, columns: int, whole: bool = False) -> list[KernelVariant]:
    """Return every variant of a product of ``rows`` × ``columns``: our own by the tile that suits, then by each, by
    wgmma where there is one, then cuBLAS. ``whole``: whether the lines of both factors are whole 16 bytes."""
    own_product = partial(OwnProduct, device, kernels, by_cores(device.precise, kernels.act))
    usual = choose_tile(rows, columns, kernels.act.itemsize)
    fits = [tile for tile in worth(rows, columns, kernels.act.itemsize) if tile != usual]
    blas = KernelVariant("cuBLAS", BlasProduct(device, kernels, device.precise))
    ours = [KernelVariant("own", own_product()), *(KernelVariant(f"own {tile}", own_product(tile)) for tile in fits)]
    if whole and wgmma.is_offered(device.runtime, kernels.act):
        tiles = wgmma.worth(columns)
        ours += [KernelVariant(f"wgmma {tile}", WgmmaProduct(device, kernels, tile)) for tile in tiles]
    return [*ours, blas]
