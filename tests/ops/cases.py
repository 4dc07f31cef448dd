"""Calls of every operation on small arrays of awkward shapes: what the implementations are compared on."""

import math
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ringtrain.ops.base import ACTIVATIONS, ConvGeometry, PoolGeometry
from ringtrain.ops.levels import cut_levels, level_bytes, packed_bytes
from ringtrain.ops.normalised import Normalised, NormStatistics
from ringtrain.ops.pairs import cut_pairs, pair_bytes, pair_count
from ringtrain.ops.update import KINDS, UpdateRange, UpdateRule

CONVOLUTIONS = {
    "same": (7, 9, 6, 4, ConvGeometry(3, 1, 1)),
    "stride 2, groups 2": (7, 9, 6, 4, ConvGeometry(3, 2, 1, 2)),
    "valid 5x5": (9, 7, 5, 7, ConvGeometry(5)),
    "1x1": (7, 9, 6, 4, ConvGeometry(1)),
    "1x1, groups 2": (7, 9, 6, 4, ConvGeometry(1, 1, 0, 2)),
    "1x1, stride 2": (7, 9, 5, 3, ConvGeometry(1, 2)),
    "one pixel, stride 2": (1, 1, 5, 3, ConvGeometry(3, 2, 1)),
    "depthwise, pad 2": (8, 8, 6, 6, ConvGeometry(3, 1, 2, 6)),
    "depthwise, stride 2": (9, 8, 21, 21, ConvGeometry(5, 2, 2, 21)),
    "depthwise, gaps": (7, 8, 3, 3, ConvGeometry(2, 3, 1, 3)),
    "depthwise, wide": (6, 7, 150, 150, ConvGeometry(3, 1, 1, 150)),
    "depthwise, pad over kernel": (4, 3, 5, 5, ConvGeometry(2, 1, 4, 5)),
    "pad over kernel": (4, 5, 2, 3, ConvGeometry(2, 3, 3)),
    "pad over kernel, stride 1": (4, 5, 2, 3, ConvGeometry(2, 1, 2)),
    "long rows": (6, 5, 40, 20, ConvGeometry(3, 1, 1)),
    "many tiles": (41, 40, 30, 6, ConvGeometry(5, 1, 2)),
}
# Whose channels are so many that the CPU's kernels take Winograd's way.
DEEP = {"3x3": (9, 8, 64, 64, ConvGeometry(3, 1, 1)), "5x5": (8, 9, 64, 64, ConvGeometry(5, 1, 2))}
# Whose channels fill vectors, and not.
NORMALISED = {
    "same": (7, 9, 16, 8, ConvGeometry(3, 1, 1)),
    "stride 2": (7, 6, 24, 16, ConvGeometry(3, 2, 1)),
    "1x1": (7, 9, 32, 8, ConvGeometry(1)),
    "odd": (5, 6, 6, 5, ConvGeometry(3, 1, 1)),
    "groups 2": (5, 6, 16, 8, ConvGeometry(3, 1, 1, 2)),
}
# Of an array of any number of spatial axes: its shape without N, and the windows.
WINDOWS = {
    "line": ((9, 4), ConvGeometry(3, 1, 1)),
    "line, stride 2, groups 2": ((9, 4), ConvGeometry(4, 2, 2, 2)),
    "line, one tap": ((7, 3), ConvGeometry(1, 2)),
    "image": ((7, 6, 5), ConvGeometry(3, 2, 1)),
    "image, groups 3": ((5, 6, 6), ConvGeometry(2, 1, 1, 3)),
    "image, gaps": ((7, 9, 17), ConvGeometry(2, 3, 1)),
    "volume": ((4, 5, 6, 3), ConvGeometry(3, 1, 1)),
    "volume, stride 2, groups 2": ((5, 4, 6, 4), ConvGeometry(2, 2, 1, 2)),
    "volume, pad over kernel": ((2, 3, 2, 2), ConvGeometry(2, 3, 3)),
}
DEPTHWISE_LINES = (  # length, channels, windows
    (60, 5, ConvGeometry(3, 1, 1)),
    (13, 70, ConvGeometry(5, 2, 3)),
    (9, 17, ConvGeometry(2, 3)),
    (4, 3, ConvGeometry(3, 1, 4)),
)
UPSAMPLED = ((4, 3, 5, 2), (1, 4, 3, 3), (3, 1, 17, 4), (2, 2, 1, 1))  # H, W, C, and how many times larger
STATISTICS = ("mean", "var", "scale", "gamma", "beta")  # the arrays of NormStatistics
POOLS = {
    "ceil with pad": PoolGeometry(3, 2, 1, True),
    "floor": PoolGeometry(2, 2),
    "ceil": PoolGeometry(3, 2, 0, True),
    "same": PoolGeometry(3, 1, 1),
    "gaps": PoolGeometry(1, 3, 0, True),
    "gaps with pad": PoolGeometry(2, 3, 1, True),
}


@dataclass
class Call:
    """``operation(**inputs, **outputs, **rest)``, where outputs hold what was in them before."""

    operation: str
    inputs: dict
    outputs: dict
    rest: dict = field(default_factory=dict)

    def __str__(self):
        shapes = {name: x.shape for name, x in self.inputs.items() if isinstance(x, np.ndarray)}
        return f"{self.operation} {shapes} {self.rest}"


def perform(ops, call: Call) -> dict:
    """The outputs after the call, and the result under ''; arrays are copied to the device first."""
    run, outputs = prepare(ops, call)
    result = run()
    return outputs() if result is None else {**outputs(), "": np.asarray(result, np.float64)}


def prepare(ops, call: Call):
    """(what does the call, what copies its outputs to the host), on arrays that are on the device."""
    inputs, outputs = _upload(ops, call.inputs), _upload(ops, call.outputs)
    return (
        lambda: getattr(ops, call.operation)(**inputs, **outputs, **call.rest),
        lambda: {name: ops.to_host(x) for name, x in _apart(outputs).items() if x is not None},
    )


def _upload(ops, arrays: dict) -> dict:
    return {name: uploaded(ops, x) for name, x in arrays.items()}


def uploaded(ops, x):
    if isinstance(x, list):
        return [uploaded(ops, each) for each in x]
    if isinstance(x, NormStatistics):
        return replace(x, **_upload(ops, {name: getattr(x, name) for name in STATISTICS}))
    if isinstance(x, Normalised):
        return Normalised(uploaded(ops, x.x), uploaded(ops, x.statistics), x.relu)
    return ops.from_host(x) if isinstance(x, np.ndarray) else x


def _apart(arrays: dict) -> dict:
    """Each array of a list, or of statistics, by a name of its own."""
    apart = {}
    for name, value in arrays.items():
        if isinstance(value, NormStatistics):
            apart |= {part: getattr(value, part) for part in STATISTICS}
        else:
            apart |= {f"{name} {i}": x for i, x in enumerate(value)} if isinstance(value, list) else {name: value}
    return apart


def _drawing(dtype, seed):
    random = np.random.default_rng(seed)
    return lambda *shape: random.standard_normal(shape).astype(dtype)


def calls(dtype, n: int):
    """Every operation, on ``n`` examples."""
    draw = _drawing(dtype, 7)
    of_examples = (
        _convolutions, _windows, _depthwise_lines, _upsampled, _pools, _normalised_convolutions,
        _batch_norms, _layers, _activations, _group_norms, _sequences, _images,
    )  # fmt: skip
    for make in of_examples:
        yield from make(draw, n)
    for make in (_flat, _updates, _numbers, _packed, _compressed):
        yield from make(draw)


def is_large(call: Call) -> bool:
    """Whether it is a convolution of many tiles."""
    return call.operation.startswith("conv2d") and call.inputs["x_NHWC"].shape[1] > 40


def of_devices(call: Call) -> bool:
    """Whether hosts do it for comparison alone."""
    in_steps = call.operation in ("add_all", "norm_statistics", "normalise", "normalise_back")
    return in_steps or "add" in call.rest or isinstance(call.inputs.get("x_NHWC"), Normalised)


def wide_calls(dtype):
    """Of operations that read several channels, or classes, together."""
    draw, random = _drawing(dtype, 4), np.random.default_rng(4)
    yield from _pools(draw, 2, 16)
    yield from _pools(draw, 2, 264)
    for rows, classes in ((300, 3), (7, 1000), (40, 33), (2, 2500), (3, 1)):
        yield from _losses(20 * draw(rows, classes), random.integers(-1, classes, rows).astype(np.int32), draw)


def deep_calls(dtype):
    yield from _convolutions(_drawing(dtype, 5), 2, DEEP)


def channel_calls(dtype, shape, ghost):
    """Of batch normalisation and of a bias, on [N, ..., C]."""
    draw = _drawing(dtype, 6)
    norms = _batch_norms(draw, shape[0], [(shape[1:], ghost)])
    yield from (each for each in norms if each.operation.startswith("batch"))
    yield Call("bias_back", {"y": draw(*shape)}, {"dy": draw(*shape), "db_C": draw(shape[-1])}, {"relu": True})


def linear_calls(dtype, n, d, k):
    yield from _linears(_drawing(dtype, 3), n, d, k)


def convolution_calls(active, shape, relu, accumulate=True, real="float32"):
    """Both passes, of weights that are exact in the type of activations."""
    n, h, w, c, k, geometry = shape
    draw, out = _drawing(active, 4), (n, geometry.output(h), geometry.output(w), k)
    x, y, dy = draw(n, h, w, c), draw(*out), draw(*out)
    weight, bias = draw(geometry.kernel, geometry.kernel, c // geometry.groups, k).astype(real), draw(k).astype(real)
    inputs, rest = {"x_NHWC": x, "w_RSCK": weight}, {"geometry": geometry, "relu": relu}
    yield Call("conv2d", {**inputs, "b_K": bias}, {"y_NPQK": np.full_like(y, 7)}, rest)
    outputs = {"dw_RSCK": weight.copy(), "db_K": bias.copy(), "dx_NHWC": np.full_like(x, 7)}
    yield Call("conv2d_back", {**inputs, "y_NPQK": y, "dy_NPQK": dy}, outputs, {**rest, "accumulate": accumulate})


def as_float64(call):
    def wide(arrays):
        return {name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}

    return Call(call.operation, wide(call.inputs), wide(call.outputs), call.rest)


def _convolutions(draw, n, layers=CONVOLUTIONS):
    for h, w, c, k, geometry in layers.values():
        p, q = geometry.output(h), geometry.output(w)
        x, y = draw(n, h, w, c), draw(n, p, q, k)
        weight = draw(geometry.kernel, geometry.kernel, c // geometry.groups, k)
        for relu in (False, True):
            arrays = {"x_NHWC": x, "w_RSCK": weight}
            for bias in (draw(k), None):
                rest = {"geometry": geometry, "relu": relu}
                yield Call("conv2d", {**arrays, "b_K": bias}, {"y_NPQK": np.zeros_like(y)}, rest)
            for accumulate, db, dx in ((relu, draw(k), draw(*x.shape)), (not relu, None, None)):
                inputs = {**arrays, "y_NPQK": y, "dy_NPQK": draw(*y.shape)}
                outputs = {"dw_RSCK": draw(*weight.shape), "db_K": db, "dx_NHWC": dx}
                rest = {"geometry": geometry, "relu": relu, "accumulate": accumulate}
                yield Call("conv2d_back", inputs, outputs, rest)


def statistics_of(draw, n, channels, ghost):
    """Those of some other array of n examples."""
    shape, eps = (-(-n // ghost), channels), 1e-5
    var, gamma = np.abs(draw(*shape)) + 1, draw(channels)
    scale = (gamma / np.sqrt(var + eps)).astype(var.dtype)
    return NormStatistics(draw(*shape), var, scale, gamma, draw(channels), ghost, eps)


def _normalised_convolutions(draw, n):
    """Of an input that is not normalised yet, and with a gradient that is added to."""
    for (h, w, c, k, geometry), relu in product(NORMALISED.values(), (False, True)):
        x = Normalised(draw(n, h, w, c), statistics_of(draw, n, c, 2), relu)
        y = draw(n, geometry.output(h), geometry.output(w), k)
        arrays = {"x_NHWC": x, "w_RSCK": draw(geometry.kernel, geometry.kernel, c // geometry.groups, k)}
        rest = {"geometry": geometry, "relu": not relu}
        yield Call("conv2d", {**arrays, "b_K": draw(k)}, {"y_NPQK": np.zeros_like(y)}, rest)
        back = {**arrays, "y_NPQK": y, "dy_NPQK": draw(*y.shape)}
        outputs = {"dw_RSCK": draw(*arrays["w_RSCK"].shape), "db_K": draw(k), "dx_NHWC": draw(*x.shape)}
        yield Call("conv2d_back", back, outputs, {**rest, "accumulate": relu, "add": not relu})


def window_shape(n, shape, geometry):
    """The shape of the matrix of windows of [N, *shape]."""
    rows = math.prod(geometry.output(extent) for extent in shape[:-1])
    return n * rows, geometry.kernel ** (len(shape) - 1) * shape[-1] // geometry.groups


def _windows(draw, n):
    for shape, geometry in WINDOWS.values():
        x, columns = draw(n, *shape), draw(*window_shape(n, shape, geometry))
        for group in {0, geometry.groups - 1}:
            rest = {"geometry": geometry, "group": group}
            yield Call("columns", {"x": x}, {"columns": columns}, rest)
            yield Call("columns_back", {"columns": columns, "b_C": None}, {"x": x}, rest)
        if geometry.groups == 1:
            arrays = {"columns": columns, "b_C": draw(shape[-1])}
            yield Call("columns_back", arrays, {"x": x}, {"geometry": geometry, "relu": True})
    for relu, db in ((False, draw(6)), (True, draw(6)), (True, None)):
        outputs, rest = {"dy": draw(n, 7, 6), "db_C": db}, {"relu": relu, "accumulate": relu}
        yield Call("bias_back", {"y": draw(n, 7, 6)}, outputs, rest)


def _depthwise_lines(draw, n):
    for length, c, geometry in DEPTHWISE_LINES:
        x, y, w = draw(n, length, c), draw(n, geometry.output(length), c), draw(geometry.kernel, c)
        for relu in (False, True):
            rest, arrays = {"geometry": geometry, "relu": relu}, {"x_NLC": x, "w_SC": w}
            yield Call("depthwise_line", {**arrays, "b_C": draw(c) if relu else None}, {"y_NPC": y}, rest)
            for accumulate, db, dx in ((relu, draw(c), draw(*x.shape)), (not relu, None, None)):
                inputs = {**arrays, "y_NPC": y, "dy_NPC": draw(*y.shape)}
                outputs = {"dw_SC": draw(*w.shape), "db_C": db, "dx_NLC": dx}
                yield Call("depthwise_line_back", inputs, outputs, {**rest, "accumulate": accumulate})


def _upsampled(draw, n):
    for h, w, c, scale in UPSAMPLED:
        x, y = draw(n, h, w, c), draw(n, h * scale, w * scale, c)
        for bilinear in (False, True):
            yield Call("upsample", {"x_NHWC": x}, {"y_NPQC": y}, {"bilinear": bilinear})
            yield Call("upsample_back", {"dy_NPQC": y}, {"dx_NHWC": x}, {"bilinear": bilinear})


def _pools(draw, n, channels=6):
    x = draw(n, 7, 9, channels)
    for geometry in POOLS.values():
        p, q = geometry.output(7), geometry.output(9)
        y, rest = draw(n, p, q, channels), {"geometry": geometry}
        where = (np.abs(draw(*y.shape)) * 4 % geometry.kernel**2).astype(np.uint8)
        yield Call("max_pool", {"x_NHWC": x}, {"y_NPQC": y, "where_NPQC": where}, rest)
        yield Call("max_pool_back", {"dy_NPQC": y, "where_NPQC": where}, {"dx_NHWC": x}, rest)
        yield Call("avg_pool", {"x_NHWC": x}, {"y_NPQC": y}, rest)
        yield Call("avg_pool_back", {"dy_NPQC": y}, {"dx_NHWC": x}, rest)
    for each in (x, draw(n, 8, channels), draw(n, 3, 4, 2, channels)):
        yield Call("global_avg_pool", {"x_NHWC": each}, {"y_NC": draw(n, channels)})
        yield Call("global_avg_pool_back", {"dy_NC": draw(n, channels)}, {"dx_NHWC": each})


CHANNELS_LAST = ((5, 4, 6), 2), ((3, 3, 150), 8), ((20, 20, 16), 3), ((9,), 2), ((7, 3), 2), ((2, 3, 2, 5), 2)


def _batch_norms(draw, n, layers=CHANNELS_LAST):
    """``layers``: the shape of an example, and how many are a ghost batch."""
    for shape, ghost in (((n, *each), ghost) for each, ghost in layers):
        c, g = shape[-1], -(-n // ghost)
        x, y, mean, var = draw(*shape) + 3, draw(*shape), draw(g, c), np.abs(draw(g, c))
        gamma, arrays = draw(c), {"ghost": ghost, "eps": 1e-5}
        for relu in (False, True):
            moments = {"mean_GC": mean, "var_GC": var}
            inputs, rest = {"x_NHWC": x, "gamma_C": gamma, "beta_C": draw(c)}, {**arrays, "relu": relu}
            added = {**inputs, "a_NHWC": draw(*shape)}
            for each in (inputs, added):
                yield Call("batch_norm", each, {"y_NHWC": y, **moments}, rest)
            back = {"x_NHWC": x, "gamma_C": gamma, "y_NHWC": y, **moments}
            for dx, accumulate in product((draw(*shape), None), (False, True)):
                outputs = {"dgamma_C": draw(c), "dbeta_C": draw(c), "dx_NHWC": dx, "dy_NHWC": draw(*shape)}
                yield Call("batch_norm_back", back, outputs, {**rest, "accumulate": accumulate})
            statistics = statistics_of(draw, n, c, ghost)
            given_steps = {"x_NHWC": x, "statistics": statistics}
            yield Call("norm_statistics", {"x_NHWC": x}, {"statistics": statistics})
            yield Call("normalise", given_steps, {"y_NHWC": y}, {"relu": relu})
            yield Call("normalise", {**given_steps, "a_NHWC": draw(*shape)}, {"y_NHWC": y}, {"relu": relu})
            shares = {"mean_C": draw(c), "var_C": draw(c)}
            for dx in (draw(*shape), None):
                outputs = {"dgamma_C": draw(c), "dbeta_C": draw(c), **shares, "dx_NHWC": dx}
                back = {**given_steps, "dy_NHWC": draw(*shape)}
                yield Call("normalise_back", back, outputs, {"total": 11, "relu": relu, "accumulate": relu})
            rest = {"ghost": ghost, "total": 11, "accumulate": relu}
            yield Call("batch_norm_shares", {"x_NHWC": x, **moments}, shares, rest)
            sums = {"dy_NHWC": draw(*shape), "sums_2C": np.zeros((2, c))}
            given_C = {"mean_C": draw(c), "var_C": np.abs(draw(c))}
            yield Call("batch_moments", {"x_NHWC": x}, {"moments_2C": np.ones((2, c))})
            inputs_C = {"x_NHWC": x, "y_NHWC": y, "mean_C": draw(c)}
            yield Call("batch_norm_sums", inputs_C, sums, {"relu": relu})
            inputs_C = {"x_NHWC": x, "gamma_C": gamma, **given_C, "dy_NHWC": y, "sums_2C": draw(2, c).astype(float)}
            yield Call("batch_norm_dx", inputs_C, {"dx_NHWC": draw(*shape)}, {"count": 700, "eps": 1e-3})
            for each in (inputs, added):
                fixed = {**each, "mean_C": draw(c), "var_C": np.abs(draw(c))}
                yield Call("batch_norm_fixed", fixed, {"y_NHWC": y}, {"eps": 1e-3, "relu": relu})


def _linears(draw, n, d=50, k=40):
    arrays, b, y = {"x_ND": draw(n, d), "w_DK": draw(d, k)}, draw(k), draw(n, k)
    for relu, accumulate in product((False, True), repeat=2):
        for bias, dx in ((b, draw(n, d)), (None, None)):
            yield Call("linear", {**arrays, "b_K": bias}, {"y_NK": draw(n, k)}, {"relu": relu})
            back = {**arrays, "y_NK": y, "dy_NK": draw(n, k)}
            outputs = {"dw_DK": draw(d, k), "db_K": bias, "dx_ND": dx}
            yield Call("linear_back", back, outputs, {"relu": relu, "accumulate": accumulate})


def _layers(draw, n):
    yield from _linears(draw, n)
    for relu in (False, True):
        yield Call("add", {"a": draw(n, 4, 10), "b": draw(n, 4, 10)}, {"y": draw(n, 4, 10)}, {"relu": relu})
    for count in (1, 2, 8):
        sources, targets = ([draw(n, 4, 10) for _ in range(count)] for _ in range(2))
        yield Call("add_all", {"sources": sources}, {"targets": targets})
    labels = np.resize(np.array([-1, 0, 39, 2, 4], np.int32), n)
    yield from _losses(5 * draw(n, 40), labels, draw)
    examples = np.arange(n) * 10**10
    inputs = {"x_ND": draw(n, 4, 3, 5), "examples_N": examples, "key_1": np.array([2**63 + 77], np.uint64)}
    yield Call("dropout", inputs, {"y_ND": draw(n, 4, 3, 5)}, {"layer": 2**64 - 5, "rate": 0.3})


def _activations(draw, n):
    for kind in ACTIVATIONS:
        x, y = 4 * draw(n, 7, 13), draw(n, 7, 13)
        yield Call("activation", {"x_N": x}, {"y_N": y}, {"kind": kind})
        yield Call("activation_back", {"x_N": x, "y_N": y, "dy_N": draw(*x.shape)}, {"dx_N": y}, {"kind": kind})


def _group_norms(draw, n):
    for shape, groups in (((n, 1, 50), 1), ((n, 12, 6), 3), ((n, 12, 21), 1), ((n, 5, 32), 2), ((n, 3, 5), 5)):
        c = shape[-1]
        x, y, gamma = draw(*shape) + 3, draw(*shape), draw(c)
        moments = {"mean_NG": draw(n, groups), "inverse_NG": np.abs(draw(n, groups))}
        inputs = {"x_NSC": x, "gamma_C": gamma}
        yield Call("group_norm", {**inputs, "beta_C": draw(c)}, {"y_NSC": y, **moments}, {"eps": 1e-5})
        for dx, accumulate in ((draw(*shape), False), (None, True)):
            outputs = {"dgamma_C": draw(c), "dbeta_C": draw(c), "dx_NSC": dx}
            back = {**inputs, **moments, "dy_NSC": draw(*shape)}
            yield Call("group_norm_back", back, outputs, {"accumulate": accumulate})


def _sequences(draw, n):
    random = np.random.default_rng(8)
    x = random.integers(0, 9, (n, 6)).astype(draw(0).dtype)
    for units in (5, 70):
        yield Call("embedding", {"x_NL": x, "w_VD": draw(9, units)}, {"y_NLD": draw(n, 6, units)})
        for accumulate in (False, True):
            outputs = {"dw_VD": draw(9, units)}
            yield Call("embedding_back", {"x_NL": x, "dy_NLD": draw(n, 6, units)}, outputs, {"accumulate": accumulate})
    for columns in (3, 90):
        yield Call("add_bias", {"x_ND": draw(n, columns), "b_D": draw(columns)}, {"y_ND": draw(n, columns)})
        for accumulate in (False, True):
            outputs = {"dy": draw(n, columns), "db_C": draw(columns)}
            yield Call("bias_back", {"y": None}, outputs, {"accumulate": accumulate})
    for length, units, heads in ((1, 6, 2), (7, 12, 3), (33, 40, 1), (20, 6, 6)):
        x, shares = 2 * draw(n, length, 3 * units), np.abs(draw(n, heads, length, length))
        for causal in (False, True):
            outputs = {"y_NLD": draw(n, length, units), "y_NHLL": shares}
            yield Call("attention", {"x_NLE": x}, outputs, {"causal": causal})
        back = {"x_NLE": x, "y_NHLL": shares, "dy_NLD": draw(n, length, units)}
        yield Call("attention_back", back, {"dx_NLE": draw(*x.shape)})


def _losses(x, labels, draw):
    totals = np.array([0.5, 1, 2])
    for smoothing, dx in ((0.0, draw(*x.shape)), (0.1, draw(*x.shape)), (0.1, None)):
        outputs, rest = {"dx_NK": dx, "totals_3": totals}, {"scale": 0.3, "smoothing": smoothing}
        yield Call("softmax_cross_entropy", {"x_NK": x, "labels_N": labels}, outputs, rest)
    values, places = (x / 2).reshape(-1), np.resize(np.array([-1, 0, 1, 1], np.int32), x.size)
    for kind in ("mse", "mae", "huber", "bce"):
        targets = np.clip(draw(x.size), 0, 1) if kind == "bce" else draw(x.size)
        for arrays, dx in ((targets, draw(x.size)), (places, draw(x.size))) + ((targets, None),) * (kind == "huber"):
            inputs, rest = {"x_N": values, "labels_N": arrays}, {"kind": kind, "scale": 0.3, "delta": 0.7}
            yield Call("value_loss", inputs, {"dx_N": dx, "totals_3": totals}, rest)
    yield Call("softmax", {"x_NK": x}, {"y_NK": draw(*x.shape)})


def _images(draw, n):
    random = np.random.default_rng(9)
    images = random.integers(0, 256, (n, 6, 7, 3)).astype(np.uint8)
    inputs = {
        "images_NHWC": images, "mean_HWC": draw(6, 7, 3), "scale_C": draw(3),
        "top_N": np.resize(np.array([-2, 0, 3, -9, 9], np.int32), n),
        "left_N": np.resize(np.array([5, -1, 0, 0, 1], np.int32), n),
        "flip_N": np.resize(np.array([0, 1, 1, 0, 1], np.uint8), n),
    }  # fmt: skip
    yield Call("prepare_images", inputs, {"y_NPQC": draw(n, 5, 5, 3)})
    for dtype in ("float32", "float64"):
        floats = {**inputs, "images_NHWC": random.normal(size=(n, 6, 7, 3)).astype(dtype)}
        yield Call("prepare_images", floats, {"y_NPQC": draw(n, 5, 5, 3)})
    boxes = np.resize(np.array([[0, 0, 6, 7], [2, 3, 1, 4], [5, 0, 0, 0], [4, 6, 2, 1]], np.int32), (n, 4))
    for source in (draw(n, 6, 7, 3), None):
        yield Call("paste_boxes", {"source_NHWC": source, "boxes_N4": boxes}, {"x_NHWC": draw(n, 6, 7, 3)})
    for share in (0.7, 0.25):
        sums = {"a_3": np.array([2.5, 3, 4]), "b_3": np.array([7.0, 1, 4])}
        yield Call("mix_totals", sums, {"totals_3": np.array([0.5, 1, 2])}, {"share": share})
    for x in (draw(n, 20, 3), draw(0)):
        yield Call("relu", {"x": x}, {"y": draw(*x.shape)})
        yield Call("relu_back", {"y": x, "dy": draw(*x.shape)}, {"dx": draw(*x.shape)})
        yield Call("copy", {"x": x}, {"y": draw(x.size)})
        yield Call("scale", {}, {"x": x}, {"factor": 0.3})
        yield Call("fill", {}, {"x": x}, {"value": 0.25})
        yield Call("square_sum", {"x": x}, {})
        yield Call("nonfinite", {"x": x}, {})


def _flat(draw):
    w, g, v = draw(5077), draw(5077), np.abs(draw(5077))
    for nesterov in (False, True):
        rest = {"lr": 0.1, "momentum": 0.9, "decay": 0.01, "nesterov": nesterov}
        yield Call("sgd", {"g": g}, {"w": w, "v": draw(5077)}, rest)
    rest = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.01, "step": 3}
    yield Call("adamw", {"g": g}, {"w": w, "m": draw(5077), "v": v}, rest)
    yield Call("adam", {"g": g}, {"w": w, "m": draw(5077), "v": v}, rest)
    division = {"lr": 0.1, "momentum": 0.9, "alpha": 0.99, "eps": 1e-8, "decay": 0.01}
    yield Call("rmsprop", {"g": g}, {"w": w, "s": v, "v": draw(5077)}, division)
    direction = {name: rest[name] for name in ("beta1", "beta2", "eps", "decay", "step")}
    yield Call("adam_direction", {"w": w}, {"g": g, "m": draw(5077), "v": v}, direction)
    yield Call("approach", {"g": g}, {"w": w}, {"rate": 0.1})


RANGES = (
    UpdateRange(8, 5077, 1.0, 0.01, 0.0, norm=0),  # of several chunks
    UpdateRange(5077, 5100, 2.0, 0.0, 0.0),
    UpdateRange(5100, 5117, 0.0, 0.0, 0.25),
    UpdateRange(5117, 5150, 0.0, 0.0, 0.0, frozen=True),
    UpdateRange(5150, 7777, 0.5, 0.1, 0.0, norm=1),
    UpdateRange(7777, 7777, 1.0, 0.0, 0.0),
)
RULE = {"momentum": 0.9, "beta2": 0.99, "eps": 1e-6, "trust_coefficient": 0.5}


def _updates(draw):
    """Of a part of the arena, whose state begins with it."""
    for kind, ema, numbers in product(KINDS, (None, 0.75), ((0.1, 1, 1.0, 1), (0.2, 3, 0.25, 1), (0.1, 2, 1.0, 0))):
        rule = UpdateRule(kind, **RULE, ema=ema)
        state = {"slots": [np.abs(draw(7777 - 8)) for _ in range(2 + (ema is not None))]}
        numbers_5 = {"numbers": np.array([*numbers, 0.0])}
        common = {"rule": rule, "ranges": RANGES, "first": 8}
        squares = np.array([[3.0, 2.0], [5.0, 0.5]])
        inputs = {"g": draw(7800), "squares_N2": squares} | numbers_5
        yield Call("update", inputs, {"w": draw(7800)} | state, common)
        if rule.layerwise:
            outputs = {"g": draw(7800), "squares_N2": squares.copy()} | state
            yield Call("update_squares", {"w": draw(7800)} | numbers_5, outputs, common)


def _numbers(draw):
    pieces = [(3, 3000), (3000, 3001), (3010, 9000)]
    for inputs in (pieces, pieces[:1], []):
        yield Call("gradient_squares", {"g": draw(9000)}, {"squares_1": np.ones(1)}, {"pieces": inputs})
    scales = (None, np.array([1024.0, 7, 2]), np.array([1.0, 1999, 2]), np.array([2.0**24, 1999, 0]))
    for squares, limit, scale, dynamic in product((None, 9.0, np.inf, np.nan), (None, 0.5, 1e9), scales, (False, True)):
        outputs = {"numbers": np.array([0.1, 4, 0, 0, 0]), "loss_scale_3": scale}
        inputs = {"squares_1": None if squares is None else np.array([squares])}
        if limit is None or squares is not None:
            yield Call("begin_update", inputs, outputs, {"limit": limit, "dynamic": dynamic})
    for loss, diverged in ((np.nan, 0), (np.inf, 0), (1.0, 1), (1.0, 0)):
        totals = {"totals_3": np.array([loss, 0, 1])}
        yield Call("begin_update", totals, {"numbers": np.array([0.1, 4, 0, 0, diverged])})


def _packed(draw):
    """float32 whatever the type of the operations."""
    x = draw(7077).astype(np.float32)
    for kind in (np.float16, np.uint16):
        packed = np.arange(14000).astype(kind)  # as bits of bfloat16: positive numbers
        yield Call("pack", {"x": x}, {"packed": np.zeros(x.size, kind)})
        for accumulate in (False, True):
            outputs = {"x": draw(14000).astype(np.float32)}
            yield Call("unpack", {"packed": packed}, outputs, {"accumulate": accumulate})


def _compressed(draw):
    x, few = draw(20_001), np.round(draw(7077))
    for arrays, k in ((x, 200), (x, x.size), (few, 3000), (few, 0), (draw(1), 1)):
        pairs = np.zeros(pair_bytes(k, arrays.itemsize), np.uint8)
        yield Call("take_largest", {}, {"x": arrays, "pairs": pairs}, {"k": k})
        values, indices = cut_pairs(pairs, k, arrays.dtype)
        values[...], indices[...] = draw(k), np.arange(k)[::-1]
        yield Call("add_pairs", {"pairs": pairs}, {"y": arrays}, {"k": k})
    for arrays, k, chunk in ((x, 41, 4096), (few, 3, 16), (few, 16, 16), (draw(5), 3, 8)):
        pairs = np.zeros(pair_bytes(pair_count(arrays.size, k, chunk), arrays.itemsize), np.uint8)
        yield Call("take_largest", {}, {"x": arrays, "pairs": pairs}, {"k": k, "chunk": chunk})
    for arrays, bits in product((draw(20_001), draw(1), 0 * draw(300)), (1, 2, 3, 4, 7, 8)):
        levels = np.zeros(level_bytes(arrays.size, bits, arrays.itemsize), np.uint8)
        yield Call("take_levels", {}, {"x": arrays, "levels": levels}, {"bits": bits})
        scales, codes = cut_levels(levels, arrays.size, bits, arrays.dtype)
        scales[...], codes[...] = draw(scales.size), np.arange(codes.size) * 37 % 251
        yield Call("add_levels", {"levels": levels}, {"y": arrays}, {"bits": bits})
    for width, k in ((0, 7), (1, 100), (5, 3), (12, 41), (31, 20_001)):
        numbers = np.random.default_rng(width).integers(0, 1 << 31, 20_001, np.int32)
        packed = np.zeros(packed_bytes(numbers.size, width), np.uint8)
        yield Call("pack_bits", {"x": numbers}, {"packed": packed}, {"width": width})
        packed = (np.arange(packed.size) * 37 % 251).astype(np.uint8)
        yield Call("unpack_bits", {"packed": packed}, {"x": np.zeros_like(numbers)}, {"width": width, "k": k})
    for turned in ((False, False), (True, False), (False, True)):
        a, b = (draw(*shape[:: -1 if each else 1]) for shape, each in zip(((90, 70), (70, 4)), turned, strict=True))
        for accumulate in (False, True):
            rest = {"a_transposed": turned[0], "b_transposed": turned[1], "accumulate": accumulate}
            yield Call("product", {"a": a, "b": b}, {"y": draw(90, 4)}, rest)
    dependent = draw(2000, 5)
    dependent[:, 1], dependent[:, 4] = 0, dependent[:, 0] - dependent[:, 2]
    for columns in (dependent, np.zeros_like(dependent), draw(3, 3), draw(1, 1)):
        yield Call("orthonormalise", {}, {"x_MR": columns})
