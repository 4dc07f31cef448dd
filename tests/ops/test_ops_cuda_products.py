"""Matrix products on a GPU's kernels, run on the host: against NumPy, and within what rounding allows."""

import itertools

import numpy as np
import pytest

from ringtrain.ops.cuda import products
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import OwnProduct, by_cores, matrix, turned
from ringtrain.ops.cuda.tiles import SMALL, TILES, Tile, choose_tile, split_depth, worth
from ringtrain.ops.precision import active_dtype
from tests.ops.cuda_support import cuda_ops, device_runtime, get, on_device, put
from tests.says import says

# Roundings to nearest of each type are off by less than this share.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
NARROW = ("tf32", "float16", "bfloat16")


def device_of(precision, choice=None):
    real = "float64" if precision == "float64" else "float32"
    active = active_dtype("float32" if precision == "float64" else precision, real)
    return Device(device_runtime(), real, active, precision != "tf32", choice=choice or Choice(fixed=True))


def bound(precision, a, b, out="float32"):
    """How far a product of exact a and b may be off: factors rounded by tensor cores, sums, and the result."""
    sizes = np.abs(a) @ np.abs(b)
    factors = 2.1 * ROUNDING["tf32"] if precision == "tf32" else 0
    sums = 2 * (a.shape[1] + 4) ** 0.5 * ROUNDING["float64" if precision == "float64" else "float32"]
    return (factors + sums) * sizes + ROUNDING[out] * np.abs(a @ b) + 1e-300


# ── each tile, layout and edge ───────────────────────────────────────────────────────────────────────────────
# rows, columns, depth: less than a tile and its edges; 16-byte lines and not; sums longer than what is on the way
SIZES = [(1, 1, 1), (64, 64, 16), (65, 72, 200), (130, 50, 77)]


@on_device
@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_layout_and_edge(precision, layout):
    device = device_of(precision)
    cores = by_cores(device.precise, device.active)
    assert cores == (precision in NARROW)
    tile = Tile(128, 128) if precision == "float16" else SMALL
    assert_products(device, OwnProduct(device, device.kernels, cores, tile), precision, layout, SIZES)


def assert_products(device, product, precision, layout, sizes):
    """Each as sums, and rounded to the type of activations."""
    random = np.random.default_rng(5)
    for rows, columns, depth in sizes:
        a, b = (random.standard_normal(shape).astype(device.active) for shape in ((rows, depth), (depth, columns)))
        left, right = (factor(device, *each) for each in zip((a, b), layout, strict=True))
        exact = a.astype(np.float64), b.astype(np.float64)
        for dtype in (device.real, device.active):
            y = device.runtime.empty((rows, columns), dtype)
            product(left, right, matrix(y, rows, columns))
            off = np.abs(get(device, y) - np.matmul(*exact))
            assert (off <= bound(precision, *exact, np.dtype(dtype).name)).all(), (dtype, rows, columns, depth)


def factor(device, values, letter):
    rows, columns = values.shape
    if letter == "n":
        return matrix(put(device, values), rows, columns)
    return turned(matrix(put(device, values.T), columns, rows))


@on_device
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "tf32"])
def test_bias_and_relu_then_rounding(precision):
    device, random = device_of(precision), np.random.default_rng(6)
    x, w, b = (random.standard_normal(shape) for shape in ((66, 40), (40, 24), (24,)))
    x, w, b = x.astype(device.active), w.astype("float32"), b.astype("float32")
    y = device.runtime.empty((66, 24), device.active)
    products.linear(device, put(device, x), put(device, w), put(device, b), y, relu=True)
    x, w = x.astype(np.float64), w.astype(device.active).astype(np.float64)
    wanted = np.maximum(x @ w + b, 0)
    out = "float32" if precision == "tf32" else precision
    off = np.abs(get(device, y) - wanted)
    assert (off <= bound(precision, x, w, out) + 2 * ROUNDING[out] * (np.abs(b) + wanted)).all()


@on_device
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_gradients_of_rounded_activations(precision):
    device, random = device_of(precision), np.random.default_rng(7)
    x, w, dy = (random.standard_normal(shape) for shape in ((70, 24), (24, 10), (70, 10)))
    y = random.standard_normal((70, 10)).astype(device.active)
    x, dy, w = x.astype(device.active), dy.astype(device.active), w.astype("float32")
    dw, db, dx = np.ones((24, 10), "float32"), np.ones(10, "float32"), np.empty((70, 24), device.active)
    outs = [put(device, each) for each in (dw, db, dx)]
    products.linear_back(device, 
        *(put(device, each) for each in (x, w, y, dy)), *outs, relu=True, accumulate=True
    )  # fmt: skip
    dw, db, dx = (get(device, each) for each in outs)
    x, dy, w = x.astype(np.float64), np.where(y > 0, dy, 0).astype(np.float64), w.astype(device.active).astype(float)
    assert (np.abs(dw - 1 - x.T @ dy) <= bound(precision, x.T, dy) + ROUNDING["float32"] * (1 + np.abs(dw))).all()
    assert np.abs(db - 1 - dy.sum(0)).max() < 1e-5
    out = "float32" if precision == "tf32" else precision
    assert (np.abs(dx - dy @ w.T) <= bound(precision, dy, w.T, out)).all()


# ── sums in parts ────────────────────────────────────────────────────────────────────────────────────────────
@on_device
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_long_sums_in_parts(precision):
    device, random = device_of(precision), np.random.default_rng(8)
    depth = 1600
    assert split_depth(1, depth, device.active.itemsize)[0] == 3
    x = random.standard_normal((5, depth)).astype(device.active)
    w = random.standard_normal((depth, 9)).astype("float32")
    b, y = random.standard_normal(9).astype("float32"), device.runtime.empty((5, 9), device.active)
    products.linear(device, put(device, x), put(device, w), put(device, b), y, relu=False)
    a, exact = x.astype(np.float64), w.astype(device.active).astype(np.float64)
    off = bound(precision, a, exact, precision) + 2 * ROUNDING[precision] * (np.abs(b) + np.abs(a @ exact))
    assert (np.abs(get(device, y) - a @ exact - b) <= off).all()
    sums, ones = put(device, np.ones((5, 9), "float32")), put(device, w.astype("float32"))
    products.product(device, put(device, x.astype("float32")), ones, sums, accumulate=True)
    wanted = x.astype(np.float64) @ w.astype(np.float64) + 1
    assert np.abs(get(device, sums) - wanted).max() < 1e-3


def test_parts_cover_the_sum():
    for tiles in (0, 1, 7, 127, 128, 4000):
        for depth in (0, 1, 511, 512, 1024, 5000, 10**6):
            for itemsize in (2, 4, 8):
                count, each = split_depth(tiles, depth, itemsize)
                assert count * each >= depth > (count - 1) * each or (depth == 0 and count == 1)
                assert each % (64 // itemsize) == 0 and (count == 1 or each >= 512 - 64)
    assert split_depth(200, 10**6, 2)[0] == 1
    assert split_depth(1, 10**6, 2)[0] in range(250, 257)


def test_tiles_suit_the_size():
    assert choose_tile(100_000, 512, 2) == Tile(128, 128)
    assert choose_tile(100_000, 64, 2) == Tile(128, 64)
    assert choose_tile(100_000, 32, 2) == choose_tile(100, 100, 4) == choose_tile(100_000, 512, 8) == SMALL
    assert choose_tile(1000, 512, 2, others=9) == Tile(128, 128)
    assert worth(100_000, 64, 2) == TILES[1:] and worth(3, 3, 2) == (SMALL,) == worth(1000, 1000, 8)
    assert max(tile.shared_bytes for tile in TILES) <= 160 * 1024


# ── choice ───────────────────────────────────────────────────────────────────────────────────────────────────
@on_device
def test_events_time_the_work_and_trials_add_nothing():
    device = device_of("float32", Choice())
    sums = put(device, np.ones((3, 3), "float32"))
    x = put(device, np.eye(3, dtype="float32"))
    for _ in range(2):
        products.product(device, x, x, sums, accumulate=True)
    assert (get(device, sums) == 1 + 2 * np.eye(3)).all()
    (chosen,) = device.choice.table.values()
    assert set(chosen.seconds) == {"own", "cuBLAS"} and all(each > 0 for each in chosen.seconds.values())


def last_is_fastest():
    """cuBLAS is the last of the ways to a product."""
    seconds = itertools.count(1000, -1)
    return Choice(measure=lambda *_: next(seconds))


@on_device
@pytest.mark.parametrize("orders", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_products_of_cublas_are_recorded_and_replayed_on_other_numbers(orders, precision):
    ops, random = cuda_ops("float32", precision, choice=last_is_fastest()), np.random.default_rng(2)
    shapes = [shape[::-1] if turned else shape for shape, turned in zip(((6, 9), (9, 4)), orders, strict=True)]
    a, b, y = *(ops.empty(shape, ops.active) for shape in shapes), ops.from_host(np.zeros((6, 4), "float32"))
    wanted, ran = np.zeros((6, 4)), []
    for _ in range(4):
        hosts = [random.integers(-4, 5, shape).astype(ops.active) for shape in shapes]
        for host, array in zip(hosts, (a, b), strict=True):
            ops.upload(host, array)
        left, right = (host.T if turned else host for host, turned in zip(hosts, orders, strict=True))
        wanted += left.astype(float) @ right.astype(float)
        ops.segment("product", lambda: ran.append(ops.product(a, b, y, *orders, accumulate=True)))
        assert (ops.to_host(y) == wanted).all()
    assert len(ran) == 2 and says(1, "segments", "recorded").matches(ops.describe())
    assert [chosen.name for chosen in ops.choices.table.values()] == ["cuBLAS"]


@on_device
def test_a_layer_of_cublas_is_recorded_with_its_bias_and_relu():
    ops, random = cuda_ops(choice=last_is_fastest()), np.random.default_rng(9)
    x, w, b = (random.standard_normal(shape).astype("float32") for shape in ((9, 7), (7, 5), (5,)))
    arrays, y = [ops.from_host(np.zeros_like(each)) for each in (x, w, b)], ops.empty((9, 5))
    for scale in (1, 2, -3):
        for host, array in zip((x * scale, w, b), arrays, strict=True):
            ops.upload(host, array)
        ops.segment("layer", lambda: ops.linear(*arrays, y, relu=True))
        assert np.abs(ops.to_host(y) - np.maximum(scale * x @ w + b, 0)).max() < 1e-5
    assert says(1, "segments", "recorded").matches(ops.describe())


@on_device
def test_a_stream_without_a_product_so_far_records_our_own_kernel():
    device = device_of("float32", last_is_fastest())
    x, y, z = (put(device, each) for each in (np.full((3, 3), 2, "float32"), *np.zeros((2, 3, 3), "float32")))
    products.product(device, x, x, y)
    assert get(device, y).tolist() == [[12] * 3] * 3 and next(iter(device.choice.table.values())).name == "cuBLAS"
    beside = device.beside()
    for plain in (False, True):
        if plain:
            products.product(beside, x, x, z)
        with beside.record() as graphs:
            products.product(beside, x, x, z, accumulate=True)
        graphs[0].launch(beside.stream)
        beside.stream.synchronize()
        assert get(device, z).tolist() == [[24 if plain else 12] * 3] * 3
