"""Products by Hopper's own instructions: wgmma on panels that the TMA unit brings (sources/wgmma_tile.cuh).

For elements of 2 bytes, on devices of compute capability 9.0. The TMA unit takes lines of whole 16 bytes. A product
with a result in the type of weights divides the steps of all its tiles evenly among BLOCKS blocks, and a second kernel
adds the parts of tiles in their order; one that rounds its result works on whole tiles.

Source: Osama et al. 2023, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication"."""

from contextlib import contextmanager
from dataclasses import dataclass

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.boxes import LINE_BYTES, WIDE_BYTES
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.kernels import Kernels

CAPABILITY = (9, 0)  # alone: sm_90a is not for later devices
STEP = 64  # elements of the sum in one step
ROWS, GROUP_ROWS = 128, 64  # of a tile, and of each of the two warpgroups that multiply
THREADS = 384
PATTERN_BYTES = 1024  # after which swizzling repeats
# Blocks that steps are divided among: the processors of an H100 and an H200. Not asked of the device: results would
# depend on it.
BLOCKS = 132
LEAST_STEPS = 4  # that are worth a block
JOIN_THREADS, JOIN_ROWS = 256, 16


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """The tile of a product: ROWS × columns. stages: steps whose panels are in shared memory at a time; what is left
    holds the rounded results."""

    columns: int
    stages: int

    def __str__(self):
        return f"{ROWS}x{self.columns}"

    @property
    def shared_bytes(self) -> int:
        panels, rounded = (ROWS + self.columns) * LINE_BYTES, ROWS * (self.columns + 8) * 2
        return PATTERN_BYTES + self.stages * panels + rounded + 2 * self.stages * 8

    @property
    def defines(self) -> dict:
        return {"TILE_M": ROWS, "TILE_N": self.columns, "WGMMA_STAGES": self.stages}

    def count(self, rows: int, columns: int) -> int:
        return -(-rows // ROWS) * -(-columns // self.columns)


TILES = (WgmmaTile(256, 3), WgmmaTile(128, 5), WgmmaTile(64, 8))


def is_offered(runtime, dtype) -> bool:
    """Whether a device has these kernels for elements of a type."""
    return runtime.facts.capability == CAPABILITY and dtype.itemsize == 2


def worth(columns: int) -> tuple[WgmmaTile, ...]:
    """Return the tiles that would not be half empty."""
    return tuple(tile for tile in TILES if columns > tile.columns // 2) or TILES[-1:]


def is_whole(*strides: int) -> bool:
    """Whether lines of 2-byte elements, so many apart, are whole 16 bytes."""
    return all(stride * 2 % WIDE_BYTES == 0 for stride in strides)


def is_aligned(device: Device, *arrays) -> bool:
    return all(device.runtime.address(array) % WIDE_BYTES == 0 for array in arrays)


def panel(rows: int, deep: bool) -> tuple[int, int, int]:
    """Return the box of a copy to a panel of ``rows``; deep: lines are rows, else elements of the sum."""
    return (STEP, rows, 1) if deep else (GROUP_ROWS, STEP, 1)


@contextmanager
def _or_unable():
    """A compiler or a driver that refuses leaves the other variants."""
    try:
        yield
    except DeviceError as error:
        raise Unable(str(error)) from error


class TileLaunches:
    """Launches of the kernels of one tile. Raises: Unable where the compiler or the driver refuses."""

    def __init__(self, device: Device, kernels: Kernels, tile: WgmmaTile):
        self._device, self._kernels, self.tile = device, kernels, tile

    def map(self, array, boxes):
        with _or_unable():
            return self._device.runtime.tensor_map(array, boxes)

    def rounded(self, source: str, name: str, tiles: int, *arguments) -> None:
        """Launch a kernel on whole tiles, as many blocks as there are processors."""
        blocks = min(tiles, self._device.runtime.facts.processors)
        self._launch(source, name, blocks, arguments)

    def sums(self, source: str, name: str, tiles: int, steps: int, arguments, result, shape, add: bool) -> None:
        """Launch a kernel with ``arguments(parts)`` on parts of tiles; then add these to ``result``. shape: (lines,
        rows of each, columns, stride), as PutSums has them."""
        device, blocks = self._device, blocks_for(tiles, steps)
        parts = device.scratch("tile parts", 2 * blocks * ROWS * self.tile.columns, device.real)
        self._launch(source, name, blocks, arguments(parts))
        if tiles * steps % blocks or tiles * steps // blocks % steps:
            lines, each, columns, stride = shape
            across = -(-columns // self.tile.columns)
            self._kernel("join", "join_parts")(
                (tiles, ROWS // JOIN_ROWS), JOIN_THREADS, device.stream, parts, result, blocks, tiles, steps, across,
                lines, each, columns, stride, int(add),
            )  # fmt: skip

    def _launch(self, source, name, blocks, arguments):
        kernel = self._kernel(source, name)
        kernel(blocks, THREADS, self._device.stream, *arguments, shared_bytes=self.tile.shared_bytes)

    def _kernel(self, source, name):
        with _or_unable():
            return self._kernels(source, name, **self.tile.defines)


def blocks_for(tiles: int, steps: int) -> int:
    """Return the number of blocks among which the steps of all tiles are divided."""
    return max(1, min(BLOCKS, tiles * steps // LEAST_STEPS))
