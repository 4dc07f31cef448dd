"""Convolution along a line and in a volume, and transposed convolution: products with matrices of windows.

Such a matrix holds the windows of some examples at a time, so that it stays small. How many is a function of shapes
and the device alone, and gradients of weights add up in the order of the examples."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ringtrain.arrays import Array
from ringtrain.nn import shapes
from ringtrain.nn.base import Fusable, Pass, Shape
from ringtrain.nn.conv import SpatialConvolution
from ringtrain.nn.settings import BIAS, HE, WEIGHT, ZERO, ParameterSpec, whole
from ringtrain.ops.base import ConvGeometry


def _blocks(ctx: Pass, count: int, of_example: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of examples; one empty range for none, since gradients are set all the same. ``of_example``:
    elements of an example's part of the matrix."""
    each = max(1, ctx.ops.columns_at_once // of_example)
    for start in range(0, max(1, count), each):
        yield start, min(start + each, count)


def _matrix(ctx: Pass, name: str, rows: int, columns: int) -> Array:
    """Return scratch memory, which all layers share: it is the next one's as soon as this one is done."""
    return ctx.space(f"columns.{name}", (rows * columns,)).reshape((rows, columns))


@dataclass(frozen=True)
class ColumnConvolution(SpatialConvolution):
    """A convolution as a product of its weights with the matrix of windows."""

    @property
    def _of_image(self) -> bool:
        """Whether x is the matrix of windows already."""
        return (self.kernel, self.stride, self.pad, self.groups) == (1, 1, 0, 1)

    def forward(self, ctx, weights, xs):
        (x,) = xs
        inputs = [x.shape[1:]]
        y = ctx.space.shared(f"{self.name}.y", (x.shape[0], *self.shape(inputs)))
        of_group = self._cut(ctx, "w", weights["weight"])
        biases = self._cut(ctx, "b", weights["bias"].reshape((1, self.channels))) if "bias" in weights else None
        for start, stop in self._turns(ctx, y, inputs):
            parts = self._parts(ctx, "y", y[start:stop])
            for group, part in enumerate(parts):
                columns = self._columns(ctx, x[start:stop], part.shape[0], group)
                bias = None if biases is None else biases[group].reshape((biases[group].size,))
                ctx.ops.linear(columns, of_group[group], bias, part, relu=self.relu)
            if self.groups > 1:
                ctx.ops.concat(parts, y[start:stop].reshape((parts[0].shape[0], self.channels)))
        return y, (x, y)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, y = tape
        inputs = [x.shape[1:]]
        dx = ctx.space.shared(f"{self.name}.dx", x.shape) if wanted[0] else None
        ctx.ops.bias_back(y, dy, grads.get("bias"), relu=self.relu, accumulate=ctx.accumulate)
        of_group, dws = self._cut(ctx, "w", weights["weight"]), self._parts(ctx, "dw", grads["weight"])
        for start, stop in self._turns(ctx, y, inputs):
            parts = self._cut(ctx, "dy", dy[start:stop])
            for group, part in enumerate(parts):
                columns = self._columns(ctx, x[start:stop], part.shape[0], group)
                part_dx = None if dx is None else dx[start:stop]
                dcolumns = self._dcolumns(ctx, part_dx, columns.shape)
                added = start > 0 or (ctx.accumulate and self.groups == 1)
                ctx.ops.linear_back(columns, of_group[group], part, part, dws[group], None, dcolumns, accumulate=added)
                if dx is not None and not self._of_image:
                    ctx.ops.columns_back(dcolumns, None, part_dx, self.geometry, group)
        if self.groups > 1:
            self._join(ctx, dws, grads["weight"])
        return (dx,)

    def _turns(self, ctx: Pass, y: Array, inputs: list[Shape]) -> Iterator[tuple[int, int]]:
        return _blocks(ctx, y.shape[0], shapes.element_count(y.shape[1:-1]) * self._depth(inputs))

    def _columns(self, ctx: Pass, x: Array, rows: int, group: int) -> Array:
        if self._of_image:
            return x.reshape((rows, x.shape[-1]))
        columns = _matrix(ctx, "x", rows, self._depth([x.shape[1:]]))
        ctx.ops.columns(x, columns, self.geometry, group)
        return columns

    def _dcolumns(self, ctx: Pass, dx: Array | None, shape: Shape) -> Array | None:
        if dx is None:
            return None
        return dx.reshape(shape) if self._of_image else _matrix(ctx, "dx", *shape)

    # ── groups: arrays [..., K] cut along their last axis ─────────────────────────────────────────────────
    def _parts(self, ctx: Pass, name: str, whole: Array) -> list[Array]:
        """Return an array for each group's features, as a matrix; the whole one for one group."""
        rows, features = whole.size // self.channels, self.channels // self.groups
        if self.groups == 1:
            return [whole.reshape((rows, features))]
        names = [f"{self.name}.{name}{group}" for group in range(self.groups)]
        return [ctx.space(each, (rows, features), whole.dtype) for each in names]

    def _cut(self, ctx: Pass, name: str, whole: Array) -> list[Array]:
        parts = self._parts(ctx, name, whole)
        if self.groups > 1:
            ctx.ops.concat_back(whole.reshape((whole.size // self.channels, self.channels)), parts)
        return parts

    def _join(self, ctx: Pass, dws: list[Array], dw: Array) -> None:
        flat = (dw.size // self.channels, self.channels)
        if not ctx.accumulate:
            ctx.ops.concat(dws, dw.reshape(flat))
            return
        joined = ctx.space(f"{self.name}.dw", flat, dw.dtype)
        ctx.ops.concat(dws, joined)
        ctx.ops.add(dw.reshape(flat), joined, dw.reshape(flat))


@dataclass(frozen=True)
class Conv1D(ColumnConvolution):
    """Cross-correlation along a line with ``channels`` kernels, in ``groups``.

    Shapes: x [N,L,C] → y [N,P,K]; weight [S,C/groups,K], bias [K]"""

    AXES = 1

    def forward(self, ctx, weights, xs):
        (x,) = xs
        if not self._depthwise(x):
            return super().forward(ctx, weights, xs)
        y = ctx.space.shared(f"{self.name}.y", (x.shape[0], *self.shape([x.shape[1:]])))
        weight = weights["weight"].reshape((self.kernel, self.channels))
        ctx.ops.depthwise_line(x, weight, weights.get("bias"), y, self.geometry, relu=self.relu)
        return y, (x, y)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, y = tape
        if not self._depthwise(x):
            return super().backward(ctx, weights, grads, dy, tape, wanted)
        dx = ctx.space.shared(f"{self.name}.dx", x.shape) if wanted[0] else None
        weight, dw = (views["weight"].reshape((self.kernel, self.channels)) for views in (weights, grads))
        gradients = dw, grads.get("bias"), dx
        rest = {"relu": self.relu, "accumulate": ctx.accumulate}
        ctx.ops.depthwise_line_back(x, weight, y, dy, *gradients, self.geometry, **rest)
        return (dx,)

    def _depthwise(self, x) -> bool:
        return 1 < self.groups == x.shape[-1] == self.channels


@dataclass(frozen=True)
class Conv3D(ColumnConvolution):
    """Cross-correlation in a volume with ``channels`` cubic kernels, in ``groups``.

    Shapes: x [N,D,H,W,C] → y [N,O,P,Q,K]; weight [T,R,S,C/groups,K], bias [K]"""

    AXES = 3


@dataclass(frozen=True)
class ConvTranspose2D(Fusable):
    """The gradient of a convolution as a layer, which makes images larger: each pixel of x adds its features times a
    kernel to a window of y. ``output_pad``: rows and columns more of y, below and at the right.

    Shapes: x [N,H,W,C] → y [N,P,Q,K], P = (H - 1) · stride - 2 · pad + kernel + output_pad; weight [C,R,S,K], bias [K]
    Source: Zeiler et al. 2010; PyTorch's ConvTranspose2d"""

    channels: int = whole(1)
    kernel: int = whole(1)
    stride: int = whole(1, 1)
    pad: int = whole(0, 0)
    output_pad: int = whole(0, 0)
    weight: ParameterSpec = field(default=HE, metadata=WEIGHT)
    bias: ParameterSpec | None = field(default=ZERO, metadata=BIAS)

    @property
    def geometry(self) -> ConvGeometry:
        """Of the convolution from y to x."""
        return ConvGeometry(self.kernel, self.stride, self.pad)

    def shape(self, inputs):
        H, W, _ = shapes.image(self, inputs)
        if self.output_pad >= self.stride:
            raise shapes.misfit(
                self, inputs, f"output_pad below stride = {self.stride}, but output_pad = {self.output_pad}"
            )
        more = self.kernel + self.output_pad - 2 * self.pad
        P, Q = ((extent - 1) * self.stride + more for extent in (H, W))
        if min(P, Q) < 1:
            raise shapes.misfit(self, inputs, f"more pixels than pad = {self.pad} takes away")
        return P, Q, self.channels

    def parameters(self, inputs):
        C = shapes.image(self, inputs)[2]
        area, K = self.kernel**2, self.channels
        # A pixel of y adds up the products of so many: of each C, one in stride² of the kernel's elements.
        fans = {"fan_in": max(1, area * C // self.stride**2), "fan_out": area * K}
        weight = self.weight.parameter("weight", (C, self.kernel, self.kernel, K), "weight", **fans)
        return (weight,) if self.bias is None else (weight, self.bias.parameter("bias", (K,), "bias"))

    def flops(self, inputs):
        products = shapes.element_count(inputs[0]) * 2 * self.kernel**2 * self.channels
        return products + (self.bias is not None) * shapes.element_count(self.shape(inputs))

    def forward(self, ctx, weights, xs):
        (x_NHWC,) = xs
        y_NPQK = ctx.space.shared(f"{self.name}.y", (x_NHWC.shape[0], *self.shape([x_NHWC.shape[1:]])))
        for start, stop in self._turns(ctx, x_NHWC):
            x, weight = self._factors(x_NHWC[start:stop], weights["weight"])
            columns = _matrix(ctx, "x", x.shape[0], weight.shape[1])
            ctx.ops.linear(x, weight, None, columns)
            ctx.ops.columns_back(columns, weights.get("bias"), y_NPQK[start:stop], self.geometry, relu=self.relu)
        return y_NPQK, (x_NHWC, y_NPQK)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x_NHWC, y_NPQK = tape
        dx_NHWC = ctx.space.shared(f"{self.name}.dx", x_NHWC.shape) if wanted[0] else None
        ctx.ops.bias_back(y_NPQK, dy, grads.get("bias"), relu=self.relu, accumulate=ctx.accumulate)
        for start, stop in self._turns(ctx, x_NHWC):
            x, weight = self._factors(x_NHWC[start:stop], weights["weight"])
            columns = _matrix(ctx, "x", x.shape[0], weight.shape[1])
            ctx.ops.columns(dy[start:stop], columns, self.geometry)
            dw = grads["weight"].reshape(weight.shape)
            dx = None if dx_NHWC is None else dx_NHWC[start:stop].reshape(x.shape)
            ctx.ops.linear_back(x, weight, columns, columns, dw, None, dx, accumulate=ctx.accumulate or start > 0)
        return (dx_NHWC,)

    def _turns(self, ctx: Pass, x_NHWC: Array) -> Iterator[tuple[int, int]]:
        _, H, W, _ = x_NHWC.shape
        return _blocks(ctx, x_NHWC.shape[0], H * W * self.kernel**2 * self.channels)

    @staticmethod
    def _factors(x: Array, weight: Array) -> tuple[Array, Array]:
        """Return pixels and weights as matrices: the factors of the windows' matrix."""
        C = weight.shape[0]
        return x.reshape((x.size // C, C)), weight.reshape((C, weight.size // C))
