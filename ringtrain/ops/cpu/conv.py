"""Convolution on the CPU: windows as matrix rows (im2col), a tile at a time, and one matrix product a tile.

    image rows ──im2col──► columns [pixels, R·S·C/groups] ──· weights──► y rows + bias, max(·, 0)

A tile is as many rows of output pixels as make about TILE_BYTES of columns, so that the product and the following work
on y find them in the L2 cache. The three products:

    y  = columns(x) · w
    dw = sum over tiles of columns(x)ᵀ · dy
    dx = columns(dy) · w flipped, a convolution itself, where stride is 1 and y is hardly smaller than x; else
    dx = dy · wᵀ, each element added back to the pixel it came from (col2im)

A 1 × 1 convolution of stride 1 needs no columns: the image is the matrix already. Groups are column ranges of the
matrices, selected by leading dimensions.

Source: Chetlur et al. 2014, "cuDNN", section 3, for the tiling; Chellapilla et al. 2006 for im2col.
"""

from dataclasses import dataclass

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cpu.blas import PLAIN, TRANSPOSED, Blas
from ringtrain.ops.cpu.kernels import columns as kernels
from ringtrain.ops.cpu.library import Kernels
from ringtrain.ops.cpu.scratch import Scratch, address

TILE_BYTES = 512 * 1024
# A product of fewer pixels than this is slow for any cache; the product of weights' gradients sums over them.
LEAST_PIXELS = 128
LEAST_PIXELS_SUMMED = 384
# The flipped convolution makes H·W rows of columns, the scattered one P·Q: it may do this much more.
FLIP_LIMIT = 1.5


@dataclass(frozen=True, slots=True)
class ConvolutionTiles:
    """The sizes of one convolution, and its tiles: (first, end) rows of Q output pixels, counted through the batch."""

    extents: tuple[int, ...]  # H W C P Q kernel stride pad: arguments of the kernels
    groups: int
    channels: int  # in, of one group
    features: int  # out, of one group
    depth: int  # columns of one group
    direct: bool
    flips: bool
    tiles: tuple[tuple[int, int], ...]
    tiles_summed: tuple[tuple[int, int], ...]

    @property
    def most_pixels(self) -> int:
        rows = max((end - start for start, end in self.tiles + self.tiles_summed), default=0)
        return rows * self.extents[4]

    @property
    def padded_image(self) -> int:
        """Elements of one padded image, as far as windows reach."""
        _, width, c, p, _, kernel, stride, pad = self.extents
        return ((p - 1) * stride + kernel) * (width + 2 * pad) * c


def make_tiles(x_shape, w_shape, y_shape, geometry: ConvGeometry, itemsize: int) -> ConvolutionTiles:
    """Return the tiles of a convolution."""
    n, height, width, c = x_shape
    _, p, q, k = y_shape
    kernel, stride, pad = geometry.kernel, geometry.stride, geometry.pad
    depth = kernel * kernel * w_shape[2]
    fits = TILE_BYTES // (itemsize * depth)
    return ConvolutionTiles(
        extents=(height, width, c, p, q, kernel, stride, pad),
        groups=geometry.groups,
        channels=c // geometry.groups,
        features=k // geometry.groups,
        depth=depth,
        direct=kernel == 1 and stride == 1 and pad == 0,
        flips=stride == 1 and pad < kernel and height * width <= FLIP_LIMIT * p * q,
        tiles=_tiles(n * p, max(fits, LEAST_PIXELS) // q),
        tiles_summed=_tiles(n * p, max(fits, LEAST_PIXELS_SUMMED) // q),
    )


def _tiles(rows: int, most: int) -> tuple[tuple[int, int], ...]:
    """Cut ``rows`` into tiles of nearly equal size, of at most ``most`` rows, but at least one."""
    if rows == 0:
        return ()
    count = -(-rows // max(1, most))
    each = -(-rows // count)
    return tuple((start, min(start + each, rows)) for start in range(0, rows, each))


class Windows:
    """The windows of ``x`` as a matrix, a tile at a time."""

    def __init__(self, plan: ConvolutionTiles, x, columns, lines):
        self._plan, self._x, self._columns, self._lines = plan, x, columns, lines
        self._at = address(x if plan.direct else columns)
        self._row_bytes = plan.extents[4] * plan.extents[2] * x.itemsize

    def __call__(self, start, end, group):
        """(address, leading dimension) of the windows of these rows of output pixels, until the next call."""
        plan = self._plan
        first = group * plan.channels
        if plan.direct:
            return self._at + start * self._row_bytes + first * self._x.itemsize, plan.extents[2]
        kernels.im2col(self._x, self._columns, self._lines, start, end, *plan.extents, first, plan.channels)
        return self._at, plan.depth


class CpuConvolution:
    """Convolution on the CPU, and its gradients."""

    def __init__(self, dtype, blas: Blas, scratch: Scratch, compiled: Kernels):
        self._dtype, self._item = dtype, dtype.itemsize
        self._blas, self._scratch, self._compiled = blas, scratch, compiled
        self._plans: dict = {}

    def forward(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu):
        plan = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        x, y, item = x_NHWC.reshape(-1), y_NPQK.reshape(-1), self._item
        w_at, y_at, k = address(w_RSCK), address(y), y_NPQK.shape[3]
        line = plan.extents[4] * k
        windows = self._windows(plan, x)
        for start, end in plan.tiles:
            pixels = (end - start) * plan.extents[4]
            for group in range(plan.groups):
                a, lda = windows(start, end, group)
                shift = group * plan.features * item
                y_tile = y_at + start * line * item + shift
                self._blas.gemm(
                    pixels, plan.features, plan.depth,
                    a, lda, PLAIN, w_at + shift, k, PLAIN, y_tile, k, 0.0,
                )  # fmt: skip
            self._compiled.finish(y[start * line : end * line], b_K, (end - start) * line, k, relu)

    def back(self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate):
        plan = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        self._compiled.unfinish(dy_NPQK, y_NPQK, db_K, y_NPQK.size, y_NPQK.shape[3], relu, accumulate)
        self._weights_back(plan, x_NHWC.reshape(-1), dy_NPQK, dw_RSCK, accumulate)
        if dx_NHWC is None:
            return
        if plan.flips:
            self._flipped(plan, w_RSCK, dy_NPQK, dx_NHWC)
        else:
            self._scattered(plan, w_RSCK, dy_NPQK, dx_NHWC)

    def _weights_back(self, plan, x, dy_NPQK, dw_RSCK, accumulate):
        dy_at, dw_at, k, item = address(dy_NPQK), address(dw_RSCK), dw_RSCK.shape[3], self._item
        if not plan.tiles_summed and not accumulate:
            dw_RSCK.fill(0)
        beta = 1.0 if accumulate else 0.0
        windows = self._windows(plan, x)
        for start, end in plan.tiles_summed:
            pixels = (end - start) * plan.extents[4]
            for group in range(plan.groups):
                a, lda = windows(start, end, group)
                shift = group * plan.features * item
                dy_tile = dy_at + start * plan.extents[4] * k * item + shift
                self._blas.gemm(
                    plan.depth, plan.features, pixels,
                    a, lda, TRANSPOSED, dy_tile, k, PLAIN, dw_at + shift, k, beta,
                )  # fmt: skip
            beta = 1.0

    def _flipped(self, plan, w_RSCK, dy_NPQK, dx_NHWC):
        kernel, _, c, k = w_RSCK.shape
        c *= plan.groups
        flipped = self._scratch("flipped", w_RSCK.size, self._dtype)[: w_RSCK.size]
        kernels.flip(w_RSCK.reshape(-1), flipped, kernel * kernel, c, k, plan.groups)
        w_RSKC = flipped.reshape(kernel, kernel, plan.features, c)
        inverse = ConvGeometry(kernel, 1, kernel - 1 - plan.extents[7], plan.groups)
        self.forward(dy_NPQK, w_RSKC, None, dx_NHWC, inverse, relu=False)

    def _scattered(self, plan, w_RSCK, dy_NPQK, dx_NHWC):
        dx_NHWC.fill(0)
        columns, dx = self._column_memory(plan), dx_NHWC.reshape(-1)
        w_at, dy_at, k, item = address(w_RSCK), address(dy_NPQK), w_RSCK.shape[3], self._item
        columns_at = address(columns)
        for start, end in plan.tiles:
            pixels = (end - start) * plan.extents[4]
            for group in range(plan.groups):
                shift = group * plan.features * item
                dy_tile = dy_at + start * plan.extents[4] * k * item + shift
                self._blas.gemm(
                    pixels, plan.depth, plan.features,
                    dy_tile, k, PLAIN, w_at + shift, k, TRANSPOSED, columns_at, plan.depth, 0.0,
                )  # fmt: skip
                kernels.col2im(columns, dx, start, end, *plan.extents, group * plan.channels, plan.channels)

    def _column_memory(self, plan):
        return self._scratch("columns", plan.most_pixels * plan.depth + kernels.SLACK, self._dtype)

    def _windows(self, plan, x):
        lines = self._scratch("lines", plan.padded_image, self._dtype)
        return Windows(plan, x, self._column_memory(plan), lines)

    def _plan(self, x_NHWC, w_RSCK, y_NPQK, geometry):
        key = (x_NHWC.shape, w_RSCK.shape, geometry)
        plan = self._plans.get(key)
        if plan is None:
            plan = make_tiles(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry, self._item)
            self._plans[key] = plan
        return plan
