"""Convolution on a GPU's kernels, run on the host: each pass by each way, against the reference and within rounding."""

import itertools

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import CudaConvolution, columns
from ringtrain.ops.cuda.convolution.plan import LONGEST_KERNEL, divider
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import as_float64, convolution_calls, is_large
from tests.ops.cuda_support import REAL, calls_of, cuda_ops, on_device, perform


def assert_alike(got, wanted, limit, call):
    for name in wanted:
        off = np.abs(got[name].astype(np.float64) - wanted[name]).max(initial=0)
        assert off <= limit * max(1, np.abs(wanted[name]).max(initial=0)), (str(call), name, off)


@on_device
def test_many_tiles_and_sums_in_parts():
    ops, reference = cuda_ops(), ReferenceOps("float32")
    large = [call for call in calls_of([CudaConvolution], "float32", 1) if is_large(call) and call.rest["relu"]]
    for call in large:
        assert_alike(perform(ops, call), perform(reference, call), 5e-6, call)
    assert len(large) == 4 and "parts/float32" in {"/".join(key) for key in ops._device._scratch}


# ── every way ────────────────────────────────────────────────────────────────────────────────────────────────
class FixedChoice(Choice):
    """The way of a name, where there is one; else the first. ``taken``: how often it was there."""

    def __init__(self, name):
        super().__init__()
        self._name, self.taken = name, 0

    def __call__(self, device, work, ways, trial):
        able = ways()
        named = [variant for variant in able if variant.name == self._name]
        self.taken += len(named)
        return (named or able)[0]


@on_device
@pytest.mark.parametrize("name", ["implicit", "columns, own", "columns, cuBLAS"])
def test_every_way_as_the_reference(name, monkeypatch):
    monkeypatch.setattr(columns, "MOST_BYTES", 20_000)  # one image at a time, or two
    choice = FixedChoice(name)
    ops, reference = cuda_ops("float32", choice=choice), ReferenceOps("float32")
    calls = [call for call in calls_of([CudaConvolution], "float32", 3) if not is_large(call)]
    for call in calls:
        assert_alike(perform(ops, call), perform(reference, call), 5e-6, call)
    assert choice.taken >= len(calls) // 2


# Sizes by which 16-byte loads, tiles of several warps, strides, groups and what is not whole are met.
WIDE = {
    "3x3": (2, 8, 7, 16, 24, ConvGeometry(3, 1, 1)),
    "3x3, stride 2, groups 2": (2, 9, 8, 32, 16, ConvGeometry(3, 2, 1, 2)),
    "1x1, stride 2": (2, 8, 8, 16, 72, ConvGeometry(1, 2)),
    "7x7 of 3 channels": (1, 16, 16, 3, 8, ConvGeometry(7, 2, 3)),
    "1x1": (3, 6, 5, 24, 8, ConvGeometry(1)),
}
LARGE = {"float32": 5e-6, "bfloat16": 2.0**-7}  # windows of dx are rounded, and then their sum
SMALLEST = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-10}
TILES_OF = {"bfloat16": "implicit", "float16": "implicit 128x64", "tf32": "implicit"}


@on_device
@pytest.mark.parametrize("precision", SMALLEST)
@pytest.mark.parametrize("name", WIDE)
def test_tensor_cores(precision, name):
    """Against the reference in float64 on what the cores are given: sums are exact to float32, results are rounded."""
    assert_passes(cuda_ops("float32", precision, choice=FixedChoice(TILES_OF[precision])), precision, WIDE[name])


def assert_passes(ops, precision, shape):
    """Both passes as in float64. Returns what they give, by array."""
    results = {}
    for call in convolution_calls(ops.active, shape, relu=True):
        results |= (got := perform(ops, call))
        for output, wanted in perform(ReferenceOps("float64"), as_float64(call)).items():
            rounded = precision == "tf32" or got[output].dtype != np.float32
            assert_alike(got, {output: wanted}, SMALLEST[precision] if rounded else 1e-5, call)
    return results


@on_device
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape, geometry",
    [((3, 34, 35, 4, 4), ConvGeometry(LONGEST_KERNEL + 1, 2, 1, 2)), ((3, 258, 3, 6, 4), ConvGeometry(3, 256, 1))],
    ids=["a large kernel", "a large stride"],
)
def test_what_cannot_be_gathered_goes_by_columns_in_every_pass(shape, geometry, precision, monkeypatch):
    """Two images at a time, whose windows have lines that are padded forward, and are not backward."""
    depth = geometry.kernel**2 * shape[3] // geometry.groups
    p, q, choice = geometry.output(shape[1]), geometry.output(shape[2]), Choice(fixed=True)
    ops, exact = cuda_ops("float32", precision, choice=choice), ReferenceOps("float64")
    monkeypatch.setattr(columns, "MOST_BYTES", int(2.5 * p * q * depth * ops.active.itemsize))
    for call in convolution_calls(ops.active, (*shape, geometry), relu=False):
        assert_alike(perform(ops, call), perform(exact, as_float64(call)), LARGE[precision], call)
    assert [each.name for each in choice.table.values()] == ["columns, own"] * 3


@on_device
def test_an_image_that_is_smaller_than_the_kernel_gives_nothing():
    ops, geometry = cuda_ops(), ConvGeometry(3)
    x, w, y = (ops.from_host(np.ones(s, "float32")) for s in ((2, 2, 2, 4), (3, 3, 4, 4), (2, 0, 0, 4)))
    dw, dx = (ops.from_host(np.ones(s, "float32")) for s in ((3, 3, 4, 4), (2, 2, 2, 4)))
    ops.conv2d(x, w, None, y, geometry)
    ops.conv2d_back(x, w, y, y, dw, None, dx, geometry, accumulate=True)
    assert (ops.to_host(dw) == 1).all() and (ops.to_host(dx) == 0).all()
    ops.conv2d_back(x, w, y, y, dw, None, None, geometry)
    assert (ops.to_host(dw) == 0).all()


ORDER = ["columns, own", "columns, cuBLAS", "implicit", "implicit 64x64"]


# ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────
@on_device
@pytest.mark.skipif(REAL, reason="a device has further ways, which the clock of this test does not know")
@pytest.mark.parametrize("best", ORDER)
def test_whatever_is_chosen_is_right_and_can_be_recorded(best):
    """The clock favours each way in turn. Windows of 3 channels make no 16-byte loads; dx has implicit ways alone."""
    geometry, random = ConvGeometry(3, 1, 1), np.random.default_rng(1)
    passes = ORDER, ORDER, ORDER[2:]
    turn = itertools.chain(*passes)
    choice = Choice(measure=lambda *_: 0 if next(turn) == best else 1)
    ops, reference = cuda_ops("float32", choice=choice), ReferenceOps("float32")
    x, w, y, dy = (
        random.standard_normal(s).astype("float32") for s in ((2, 5, 5, 3), (3, 3, 3, 7), (2, 5, 5, 7), (2, 5, 5, 7))
    )
    arrays = [ops.from_host(each) for each in (x, w, y, dy, np.zeros_like(w), np.zeros_like(x))]

    def run(ops, x, w, y, dy, dw, dx):
        ops.conv2d(x, w, None, y, geometry)
        ops.conv2d_back(x, w, y, dy, dw, None, dx, geometry, accumulate=True)

    for _ in range(3):
        ops.segment("layer", lambda: run(ops, *arrays))
    wanted = [x, w, y, dy, np.zeros_like(w), np.zeros_like(x)]
    for _ in range(3):
        run(reference, *wanted)
    for got, host in zip(arrays, wanted, strict=True):
        assert np.abs(ops.to_host(got) - host).max() < 2e-5
    assert "1 segments recorded" in ops.describe() and "anew" not in ops.describe()
    assert [each.name for each in choice.table.values()] == [best if best in ways else ways[0] for ways in passes]


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────
def test_division_by_multiplication():
    random = np.random.default_rng(2)
    for divisor in [*range(1, 70), 112 * 112, 3136, 2**20, 2**30 + 1, 2**31 - 1]:
        multiplier, shift = divider(divisor)
        assert 0 <= multiplier < 2**32
        for x in [0, 1, divisor - 1, divisor, 2**31 - 1, *random.integers(0, 2**31, 20).tolist()]:
            assert ((x * multiplier >> 32) + x) >> shift == x // divisor


def test_taps_are_divided_exactly_in_float():
    """As windows.cuh does it, for any window that a plan lets it have."""
    for taps in range(1, LONGEST_KERNEL + 1):
        tap = np.arange(LONGEST_KERNEL**2, dtype=np.float32)
        quotient = ((tap + np.float32(0.5)) * (np.float32(1) / np.float32(taps))).astype(np.int64)
        assert (quotient == np.arange(LONGEST_KERNEL**2) // taps).all()
