"""Convolution by products whose left factor is gathered from the image as it is loaded: nothing is kept in memory.

    forward   [pixels, R·S·C] · [R·S·C, K]                    groups at once
    dx        [pixels of a phase, R·S·K] · [R·S·K, C]         groups and stride² phases at once
    dw        [R·S·C, pixels] · [pixels, K]                   groups and slices of the pixels at once, then their sum

Weights are rounded for products (:mod:`ringtrain.ops.cuda.rounding`), with w_RSCK in its order in memory.
"""

from ringtrain.ops.cuda.convolution.plan import LONGEST_KERNEL, ConvolutionPlan, divider
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import ADD, RELU, WIDE_A, WIDE_B, WIDE_Y, by_cores, is_wide
from ringtrain.ops.cuda.tiles import THREADS, Tile, choose_tile, split_depth

MOST_BLOCKS_Z = 65535  # of a launch


class Implicit:
    """The passes by implicit products. ``tile``: None for the one that suits the size."""

    def __init__(self, device: Device, tile: Tile | None = None):
        self._device, self._tile = device, tile

    @staticmethod
    def able(plan: ConvolutionPlan) -> bool:
        return plan.kernel <= LONGEST_KERNEL and plan.groups * plan.stride**2 <= MOST_BLOCKS_Z

    def forward(self, plan: ConvolutionPlan, x, w, b, y, relu):
        rows, columns = plan.pixels, plan.group_features
        if not rows:
            return
        tile = self._tile_of(rows, columns, plan.groups)
        flags = RELU * relu + WIDE_A * self._wide(x, plan.channels, plan.group_channels)
        flags += WIDE_B * self._wide(w, plan.features, columns) + WIDE_Y * self._wide(y, plan.features, columns)
        blocks = tile.count(rows, columns), 1, plan.groups
        divide = divider(plan.group_channels)
        self._launch("forward", tile, blocks, x, w, b, y, *plan.sizes, plan.groups, *divide, flags)

    def input_back(self, plan: ConvolutionPlan, w, dy, dx):
        rows = plan.images * -(-plan.height // plan.stride) * -(-plan.width // plan.stride)  # of the largest phase
        columns, phases = plan.group_channels, plan.stride**2
        if not rows:
            return
        tile = self._tile_of(rows, columns, plan.groups * phases)
        wide_w = self._wide(w, plan.features, plan.group_features)
        flags = WIDE_A * self._wide(dy, plan.features, plan.group_features) + WIDE_B * wide_w
        flags += WIDE_Y * self._wide(dx, plan.channels, columns)
        blocks = tile.count(rows, columns), 1, plan.groups * phases
        divide = divider(plan.group_features)
        self._launch("input_back", tile, blocks, dy, w, dx, *plan.sizes, plan.groups, *divide, flags)

    def weights_back(self, plan: ConvolutionPlan, x, dy, dw, accumulate):
        device, rows, columns = self._device, plan.depth, plan.group_features
        tile = self._tile_of(rows, columns, plan.groups)
        tiles = tile.count(rows, columns) * plan.groups
        parts, each = split_depth(tiles, plan.pixels, device.active.itemsize)
        flags = WIDE_A * self._wide(x, plan.channels, plan.group_channels)
        flags += WIDE_B * self._wide(dy, plan.features, columns) + ADD * (accumulate and parts == 1)
        sums = dw if parts == 1 else device.scratch("parts", parts * dw.size, device.real)
        blocks = tile.count(rows, columns), 1, plan.groups * parts
        divide = *divider(plan.p * plan.q), *divider(plan.q)
        self._launch("weights_back", tile, blocks, x, dy, sums, *plan.sizes, plan.groups, *divide, each, flags)
        if parts > 1:
            kernel = device.kernels("matrix", "sum_parts")
            device.each(kernel, dw.size, sums, dw, parts, dw.size, int(accumulate))

    def _tile_of(self, rows, columns, others):
        return self._tile or choose_tile(rows, columns, self._device.active.itemsize, others)

    def _launch(self, name, tile, blocks, *arguments):
        device = self._device
        cores = by_cores(device.precise, device.active)
        kernel = device.kernels("convolution", name, **tile.defines, CORES=int(cores))
        kernel(blocks, THREADS, device.stream, *arguments, shared_bytes=tile.shared_bytes)

    def _wide(self, array, *strides):
        return is_wide(self._device.runtime, array, *strides)
