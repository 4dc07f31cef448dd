"""Convolution by wgmma: windows are gathered by the TMA unit (im2col) on their way to shared memory.

    forward   x, windows of every output pixel       · w [taps, C, K]
    dx        dy, windows read backwards, by phase   · w [taps, C, K]
    dw        x, windows, pixels as the sum          · dy

For channels and features of whole 16 bytes, in one group. Arrays that do not begin at 16 bytes are left to the usual
kernels. An image that is the matrix of its windows already is multiplied as a matrix, unless moments are wanted."""

from dataclasses import dataclass

from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.boxes import Boxes, PixelBoxes, reachable, windows
from ringtrain.ops.cuda.convolution.implicit import Implicit
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import ADD, RELU, WIDE_Y, is_wide

SOURCE = "wgmma_convolution"
FURTHEST_TAP = 255


@dataclass(frozen=True, slots=True)
class Side:
    """A phase of an image along one of its axes: ``count`` pixels, each ``stride``-th from ``start`` on. Their windows
    in dy have ``taps`` pixels and begin at ``dy_start``, ``dy_start`` + 1, ...; tap i of them is tap last - i · stride
    of the weights."""

    start: int
    count: int
    taps: int
    dy_start: int
    last: int


def side(phase: int, size: int, kernel: int, stride: int, pad: int) -> Side:
    """Return the phase of pixels h with (h + pad) mod stride = phase. Source: Dumoulin & Visin 2016, section 4."""
    first = -(-(pad - phase) // stride)
    start = first * stride + phase - pad
    count = max(0, -(-(size - start) // stride))
    taps = -(-(kernel - phase) // stride) if phase < kernel else 0
    return Side(start, count, taps, first - (taps - 1), phase + (taps - 1) * stride)


def phases(plan: ConvolutionPlan) -> list[tuple[Side, Side]]:
    """Return the phases (down, across) that have pixels."""

    def sides(size):
        candidates = (side(phase, size, plan.kernel, plan.stride, plan.pad) for phase in range(plan.stride))
        return [each for each in candidates if each.count]

    return [(down, across) for down in sides(plan.height) for across in sides(plan.width)]


class WgmmaConvolution:
    """The passes, by one tile."""

    def __init__(self, device: Device, tile: wgmma.WgmmaTile):
        self._device, self._tile = device, tile
        self._launches, self._usual = wgmma.TileLaunches(device, device.kernels, tile), Implicit(device)

    @staticmethod
    def able(device: Device, plan: ConvolutionPlan, direct: bool = False) -> bool:
        """Whether the passes of a plan can be done so. ``direct``: of an image that is its own matrix, too."""
        offered = wgmma.is_offered(device.runtime, device.active)
        if not (offered and plan.groups == 1 and (direct or not plan.direct)):
            return False
        boxes = [_windows_in(plan, 1), *(_windows_back(plan, *each) for each in phases(plan) if _meets(*each))]
        whole = wgmma.is_whole(plan.channels, plan.features)
        return whole and plan.kernel <= FURTHEST_TAP and Implicit.able(plan) and all(map(reachable, boxes))

    def forward(self, plan: ConvolutionPlan, x, w, b, y, relu, moments=None, ghost=0):
        if not wgmma.is_aligned(self._device, x, w):
            return self._usual.forward(plan, x, w, b, y, relu, moments, ghost)
        flags = RELU * relu + WIDE_Y * is_wide(self._device.runtime, y, plan.features)
        maps = self._launches.map(x, _windows_in(plan, wgmma.ROWS)), self._weights(plan, w, deep=False)
        sizes = plan.images, plan.channels, plan.p, plan.q, plan.features, plan.kernel, plan.stride, plan.pad
        group_rows = min(ghost * plan.p * plan.q, plan.pixels) if ghost else plan.pixels
        tiles = -(-plan.pixels // group_rows) * self._tile.count(group_rows, plan.features)
        self._launches.rounded(SOURCE, "forward", tiles, *maps, b, y, moments, *sizes, group_rows, flags)
        return wgmma.GROUP_ROWS, -(-group_rows // wgmma.ROWS) * wgmma.ROWS // wgmma.GROUP_ROWS

    def input_back(self, plan: ConvolutionPlan, w, dy, dx, add=False):
        if not wgmma.is_aligned(self._device, w, dy):
            self._usual.input_back(plan, w, dy, dx, add)
            return
        sides = phases(plan)
        if not (add or all(_meets(*each) for each in sides)):
            self._device.runtime.clear(dx, self._device.stream)  # pixels that are in no window
        weights = self._weights(plan, w, deep=True)
        for down, across in sides:
            if _meets(down, across):
                self._phase(plan, weights, dy, dx, down, across, add)

    def _phase(self, plan, weights, dy, dx, down, across, add):
        flags = WIDE_Y * is_wide(self._device.runtime, dx, plan.channels) + ADD * add
        image = plan.images, plan.height, plan.width, plan.channels, plan.features, plan.kernel, plan.stride
        pixels = down.count, across.count, down.start, across.start
        windows_of_dy = down.taps, across.taps, down.dy_start, across.dy_start
        first = down.last * plan.kernel + across.last
        tiles = self._tile.count(plan.images * down.count * across.count, plan.channels)
        windows_map = self._launches.map(dy, _windows_back(plan, down, across))
        arguments = windows_map, weights, dx, *image, *pixels, *windows_of_dy, first, flags
        self._launches.rounded(SOURCE, "input_back", tiles, *arguments)

    def weights_back(self, plan: ConvolutionPlan, x, dy, dw, accumulate):
        if not wgmma.is_aligned(self._device, x, dy):
            self._usual.weights_back(plan, x, dy, dw, accumulate)
            return
        gradients = Boxes(
            (plan.features, plan.pixels, 1), (plan.features, plan.features * plan.pixels), wgmma.panel(0, deep=False)
        )
        maps = self._launches.map(x, _windows_in(plan, wgmma.STEP)), self._launches.map(dy, gradients)
        sizes = plan.images, plan.channels, plan.p, plan.q, plan.features, plan.kernel, plan.stride, plan.pad
        taps = plan.kernel**2
        rows = taps * -(-plan.channels // wgmma.GROUP_ROWS) * wgmma.GROUP_ROWS
        tiles, steps = self._tile.count(rows, plan.features), -(-plan.pixels // wgmma.STEP)
        shape = taps, plan.channels, plan.features, plan.features

        def arguments(parts):
            return *maps, dw, parts, *sizes, ADD * accumulate

        self._launches.sums(SOURCE, "weights_back", tiles, steps, arguments, dw, shape, accumulate)

    def _weights(self, plan, w, deep):
        """Return the map of w [taps, C, K]. deep: K is the sum's."""
        extents = plan.features, plan.channels, plan.kernel**2
        box = wgmma.panel(self._tile.columns, deep)
        return self._launches.map(w, Boxes(extents, (plan.features, plan.features * plan.channels), box))


def _meets(down: Side, across: Side) -> bool:
    """Whether a phase's pixels are in any window."""
    return down.taps > 0 and across.taps > 0


def _windows_in(plan: ConvolutionPlan, pixels: int) -> PixelBoxes:
    """Return the windows of x, so many at a time."""
    image = plan.channels, plan.width, plan.height, plan.images
    return windows(image, (-plan.pad, -plan.pad), (plan.q, plan.p), plan.stride, wgmma.STEP, pixels)


def _windows_back(plan: ConvolutionPlan, down: Side, across: Side) -> PixelBoxes:
    """Return the windows of dy for the pixels of a phase."""
    image = plan.features, plan.q, plan.p, plan.images
    corner, counts = (across.dy_start, down.dy_start), (across.count, down.count)
    return windows(image, corner, counts, 1, wgmma.STEP, wgmma.ROWS)
