"""Convolution by products whose left factor is gathered from the image as it is loaded: nothing is kept in memory.

    forward   [pixels, R·S·C] · [R·S·C, K]                    groups at once
    dx        [pixels of a phase, R·S·K] · [R·S·K, C]         groups and stride² phases at once
    dw        [R·S·C, pixels] · [pixels, K]                   groups and slices of the pixels at once, then their sum

Weights are rounded for products (:func:`ringtrain.ops.cuda.gemm.rounded`), with w_RSCK in its order in memory. The
image may be normalised as it is loaded; tiles of the result may be of ghost batches, and leave their moments."""

from ringtrain.arrays import Array
from ringtrain.ops.cuda.convolution.plan import LONGEST_KERNEL, ConvolutionPlan, divider
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import ADD, RELU, WIDE_A, WIDE_B, WIDE_Y, by_cores, is_wide
from ringtrain.ops.cuda.tiles import THREADS, Tile, choose_tile, split_depth
from ringtrain.ops.normalised import Normalised

MOST_BLOCKS_Z = 65535  # of a launch


class Implicit:
    """The passes by implicit products. ``tile``: None for the one that suits the size."""

    def __init__(self, device: Device, tile: Tile | None = None):
        self._device, self._tile = device, tile

    @staticmethod
    def able(plan: ConvolutionPlan) -> bool:
        return plan.kernel <= LONGEST_KERNEL and plan.groups * plan.stride**2 <= MOST_BLOCKS_Z

    def normalises(self, plan: ConvolutionPlan, x: Normalised) -> bool:
        """Whether the image can be normalised as it is loaded."""
        return plan.groups == 1 and self._wide(x.x, plan.channels)

    def forward(self, plan: ConvolutionPlan, x, w, b, y, relu, moments: Array | None = None, ghost: int = 0):
        """``ghost``: examples that moments are of. Returns what a slice of the moments is: (its rows, slices of a ghost
        batch); None where the tiles follow a normalised image's own statistics, of other ghost batches."""
        rows, columns = plan.pixels, plan.group_features
        if not rows:
            return None
        ghost = min(ghost, plan.images)
        tiled = _ghost(plan, x) if isinstance(x, Normalised) else ghost
        measures = 0 < tiled == ghost
        tile = self._tile_of(rows, columns, plan.groups)
        flags = RELU * relu + WIDE_A * self._wide(_image(x), plan.channels, plan.group_channels)
        flags += WIDE_B * self._wide(w, plan.features, columns) + WIDE_Y * self._wide(y, plan.features, columns)
        group_rows = tiled * plan.p * plan.q if tiled else rows
        blocks = -(-rows // group_rows) * tile.count(group_rows, columns), 1, plan.groups
        divide, moments = divider(plan.group_channels), moments if measures else None
        if isinstance(x, Normalised):
            arguments = *_normal(x), w, b, y, moments, *plan.sizes, *divide, tiled, x.relu, flags
            self._launch("convolution_normalised", "forward", tile, blocks, *arguments)
        else:
            arguments = x, w, b, y, moments, *plan.sizes, plan.groups, *divide, tiled, flags
            self._launch("convolution", "forward", tile, blocks, *arguments)
        return (tile.rows, -(-group_rows // tile.rows)) if measures else None

    def input_back(self, plan: ConvolutionPlan, w, dy, dx, add=False):
        rows = plan.images * -(-plan.height // plan.stride) * -(-plan.width // plan.stride)  # of the largest phase
        columns, phases = plan.group_channels, plan.stride**2
        if not rows:
            return
        tile = self._tile_of(rows, columns, plan.groups * phases)
        wide_w = self._wide(w, plan.features, plan.group_features)
        flags = WIDE_A * self._wide(dy, plan.features, plan.group_features) + WIDE_B * wide_w + ADD * add
        flags += WIDE_Y * self._wide(dx, plan.channels, columns)
        blocks = tile.count(rows, columns), 1, plan.groups * phases
        divide = divider(plan.group_features)
        self._launch("convolution", "input_back", tile, blocks, dy, w, dx, *plan.sizes, plan.groups, *divide, flags)

    def weights_back(self, plan: ConvolutionPlan, x, dy, dw, accumulate):
        device, rows, columns = self._device, plan.depth, plan.group_features
        tile = self._tile_of(rows, columns, plan.groups)
        tiles = tile.count(rows, columns)
        count, each = split_depth(tiles * plan.groups, plan.pixels, device.active.itemsize)
        flags = WIDE_A * self._wide(_image(x), plan.channels, plan.group_channels)
        flags += WIDE_B * self._wide(dy, plan.features, columns) + ADD * accumulate
        parts = tickets = None
        if count > 1:
            parts = device.scratch("parts", count * dw.size, device.real)
            tickets = device.tickets(tiles * plan.groups)
        blocks = tiles, 1, plan.groups * count
        outputs = dy, dw, parts, tickets, *plan.sizes
        divide = *divider(plan.p * plan.q), *divider(plan.q)
        if isinstance(x, Normalised):
            by_group = divider(_ghost(plan, x) * plan.p * plan.q)
            arguments = *_normal(x), *outputs, *divide, *by_group, each, x.relu, flags
            self._launch("convolution_normalised", "weights_back", tile, blocks, *arguments)
        else:
            arguments = x, *outputs, plan.groups, *divide, each, flags
            self._launch("convolution", "weights_back", tile, blocks, *arguments)

    def _tile_of(self, rows, columns, others):
        return self._tile or choose_tile(rows, columns, self._device.active.itemsize, others)

    def _launch(self, source, name, tile, blocks, *arguments):
        device = self._device
        cores = by_cores(device.precise, device.active)
        kernel = device.kernels(source, name, **tile.defines, CORES=int(cores))
        kernel(blocks, THREADS, device.stream, *arguments, shared_bytes=tile.shared_bytes)

    def _wide(self, array, *strides):
        return is_wide(self._device.runtime, array, *strides)


def _image(x):
    return x.x if isinstance(x, Normalised) else x


def _ghost(plan: ConvolutionPlan, x: Normalised) -> int:
    """Return the images of the largest ghost batch that there is: kernels multiply it by pixels."""
    return min(x.statistics.ghost, plan.images)


def _normal(x: Normalised) -> tuple:
    return x.x, x.statistics.mean, x.statistics.scale, x.statistics.beta
