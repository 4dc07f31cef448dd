"""Products by wgmma, run on the host: every order of factors, sums in parts of tiles, either order of warps."""

from functools import partial

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.gemm import WgmmaProduct, matrix, turned
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import REAL, get, needs_compiler, put
from tests.ops.test_ops_cuda_products import assert_products, bound, device_of

SMALL = wgmma.TILES[-1]
pytestmark = [needs_compiler, pytest.mark.usefixtures("hopper")]


# ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────
# rows, columns, depth: less than a tile and less than a step; edges of two tiles and more steps than there are stages
SIZES = [(8, 8, 8), (136, 264, 72), (200, 72, 648)]


@pytest.mark.device
@pytest.mark.parametrize("tile", wgmma.TILES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_order_of_factors(tile, layout):
    assert_by_wgmma("bfloat16", tile, layout, SIZES)


@pytest.mark.device
def test_products_of_float16():
    assert_by_wgmma("float16", SMALL, "tn", SIZES[:2])


def assert_by_wgmma(precision, tile, layout, sizes):
    device = device_of(precision)
    assert_products(device, WgmmaProduct(device, device.kernels, tile), precision, layout, sizes)


def drawn(device, *shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(device.active)


@pytest.mark.device
def test_a_layer_within_wider_matrices():
    """Factors and result are columns of more; bias and max(·, 0) come before rounding."""
    device = device_of("bfloat16")
    x, w, b = drawn(device, 130, 96), drawn(device, 72, 48), drawn(device, 40).astype("float32")
    y = put(device, np.full((130, 56), 100).astype(device.active))
    left, right = matrix(put(device, x), 130, 72, 96, 16), matrix(put(device, w), 72, 40, 48, 8)
    product = WgmmaProduct(device, device.kernels, SMALL)
    product(left, right, matrix(y, 130, 40, 56, 8), put(device, b), relu=True)
    x, w = x[:, 16:88].astype(np.float64), w[:, 8:].astype(np.float64)
    wanted = np.maximum(x @ w + b, 0)
    got = get(device, y)
    assert (np.abs(got[:, 8:48] - wanted) <= bound("bfloat16", x, w, "bfloat16") + 2.0**-7 * (1 + wanted)).all()
    assert (got[:, :8] == 100).all() and (got[:, 48:] == 100).all()


@pytest.mark.device
@pytest.mark.parametrize("start, depth", [(1, 64), (4, 64), (0, 62)])
def test_factors_that_the_unit_cannot_take_are_multiplied_all_the_same(start, depth):
    """They begin between multiples of 16 bytes, or their lines do."""
    device = device_of("bfloat16")
    x, w, sums = drawn(device, 24 * depth + start), drawn(device, depth, 8), device.runtime.empty((24, 8), "float32")
    product = WgmmaProduct(device, device.kernels, SMALL)
    product(matrix(put(device, x), 24, depth, start=start), matrix(put(device, w), depth, 8), matrix(sums, 24, 8))
    a, b = x[start:].reshape(24, depth).astype(np.float64), w.astype(np.float64)
    assert (np.abs(get(device, sums) - a @ b) <= bound("bfloat16", a, b)).all()


# ── stream-K ─────────────────────────────────────────────────────────────────────────────────────────────────────
def long_sums(accumulate=True):
    """Sums of 2 tiles of 21 steps each, in bits, and what they should be."""
    device = device_of("bfloat16")
    a, b = drawn(device, 1330, 136), drawn(device, 1330, 64)
    before = drawn(device, 136, 64).astype("float32")
    sums = put(device, before)
    product = WgmmaProduct(device, device.kernels, SMALL)
    left, right = turned(matrix(put(device, a), 1330, 136)), matrix(put(device, b), 1330, 64)
    product(left, right, matrix(sums, 136, 64), accumulate=accumulate)
    wanted = a.T.astype(np.float64) @ b.astype(np.float64) + (before if accumulate else 0)
    assert (np.abs(get(device, sums) - wanted) <= bound("bfloat16", a.T.astype(np.float64), b) + 1e-6).all()
    return get(device, sums).tobytes()


@pytest.mark.device
@pytest.mark.parametrize("blocks", [1, 2, 4, 7, 42, 132])
def test_parts_of_tiles_are_added_in_their_order(blocks, monkeypatch):
    """One block for both tiles, one for each, shares that end within tiles, and a block for each step."""
    monkeypatch.setattr(wgmma, "BLOCKS", blocks)
    monkeypatch.setattr(wgmma, "LEAST_STEPS", 1)
    assert long_sums() == long_sums()
    long_sums(accumulate=False)


def test_blocks_have_enough_to_do():
    assert [wgmma.blocks_for(tiles, steps) for tiles, steps in ((1, 1), (1, 9), (3, 98), (9, 6272))] == [1, 2, 73, 132]


def test_tiles_fit_into_shared_memory():
    assert max(tile.shared_bytes for tile in wgmma.TILES) <= HostRuntime().facts.shared_bytes
    assert [str(tile) for tile in wgmma.worth(300)] == ["128x256", "128x128", "128x64"]
    assert [str(tile) for tile in wgmma.worth(100)] == ["128x128", "128x64"]
    assert [str(tile) for tile in wgmma.worth(8)] == ["128x64"]


@pytest.mark.device
@pytest.mark.skipif(REAL, reason="a device's compiler takes them")
@pytest.mark.parametrize("method", ["compile", "tensor_map"])
def test_a_refusal_leaves_the_other_ways(method, monkeypatch):
    right = getattr(HostRuntime, method)

    def refuses(self, *arguments):
        if method == "tensor_map" or "sm_90a" in arguments:
            raise DeviceError("unsupported architecture")
        return right(self, *arguments)

    monkeypatch.setattr(HostRuntime, method, refuses)
    device = device_of("bfloat16")
    x, sums = put(device, drawn(device, 8, 8)), device.runtime.empty((8, 8), "float32")
    with pytest.raises(Unable, match="unsupported architecture"):
        WgmmaProduct(device, device.kernels, SMALL)(*[matrix(x, 8, 8)] * 2, matrix(sums, 8, 8))


# ── either order ─────────────────────────────────────────────────────────────────────────────────────────────────
def both_orders(run, monkeypatch):
    """What runs give: copies as late as they may be and warps in order, then copies at once and the last warp first."""
    forwards = run()
    with monkeypatch.context() as changed:
        changed.setenv("CUDA_SHIM_BACKWARDS", "1")
        return forwards, run()


@pytest.mark.device
@pytest.mark.skipif(REAL, reason="a device has one order")
def test_products_are_right_in_either_order_of_warps_and_copies(monkeypatch):
    """Of both kinds of operands: several tiles for a block, and all stages several times."""
    monkeypatch.setattr(wgmma, "LEAST_STEPS", 1)
    for layout, size in (("nn", (520, 200, 72)), ("nt", (136, 72, 648)), ("tn", (72, 136, 648))):
        run = partial(assert_by_wgmma, "bfloat16", wgmma.TILES[1], layout, [size])
        both_orders(run, monkeypatch)
