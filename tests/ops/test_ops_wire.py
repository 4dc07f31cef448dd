"""16-bit types by hand: every value they have, every kind of rounding, and the same bits from each implementation."""

import numpy as np
import pytest

from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import Call, perform
from tests.ops.cuda_support import ON_DEVICE, cuda_ops

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}
EVERY = np.arange(1 << 16).astype(np.uint16)
# Bits of float32: about where 16 bits overflow, lose their digits or have a tie; NaN, infinity, -0.
EDGES = [0x477FEFFF, 0x477FF000, 0x387FFFFF, 0x33000000, 0x33000001, 0x7F7FFFFF, 0x7F7F8000, 0x00000001, 0x00808000]
EDGES = np.array([*EDGES, 0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0x80000000], np.uint32)


@pytest.fixture(params=[CpuOps, ReferenceOps])
def ops(request):
    return request.param("float32")


def packed(ops, x, name):
    bits = np.zeros(len(x), KINDS[name])
    ops.pack(np.asarray(x, np.float32), bits)
    return bits


def unpacked(ops, bits):
    x = np.zeros(len(bits), np.float32)
    ops.unpack(bits, x)
    return x


def through(ops, x, name):
    return unpacked(ops, packed(ops, x, name)).tolist()


@pytest.mark.parametrize(("name", "bits"), [("float16", 10), ("bfloat16", 7)])
def test_ties_go_to_the_even_neighbour(ops, name, bits):
    step = 2.0**-bits  # between 1 and 2
    values = [1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, 1 + 0.49 * step, -1 - 1.5 * step, 2 - step / 2, -0.0]
    wanted = [1, 1 + 2 * step, 1 + step, 1, -1 - 2 * step, 2, -0.0]
    got = through(ops, values, name)
    assert got == wanted and np.signbit(got[-1])


def test_half_precision_overflows_and_underflows_as_ieee_says(ops):
    least = 2.0**-24
    values = [65504, 65519.996, 65520, 1e38, -65520, least, least / 2, 0.51 * least, 1.5 * least, 2.5 * least, 2.0**-14]
    wanted = [65504, 65504, np.inf, np.inf, -np.inf, least, 0, least, 2 * least, 2 * least, 2.0**-14]
    assert through(ops, values, "float16") == wanted
    just_below = np.float32(2.0**-14) - np.float32(2.0**-38)
    assert through(ops, [just_below], "float16") == [2.0**-14]


def test_bfloat16_overflows_where_float32_does(ops):
    largest = np.finfo(np.float32).max
    assert through(ops, [largest, -largest, 2.0**128 - 1.2 * 2.0**120], "bfloat16") == [
        np.inf,
        -np.inf,
        2.0**128 - 2.0**120,
    ]


@pytest.mark.parametrize("name", KINDS)
def test_infinity_stays_and_any_nan_becomes_the_quiet_one(ops, name):
    wrong = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800001], np.uint32)
    bits = packed(ops, wrong.view(np.float32), name)
    assert set(bits.view(np.uint16).tolist()) == {0x7E00 if name == "float16" else 0x7FC0}
    assert np.isnan(unpacked(ops, bits)).all()
    assert through(ops, [np.inf, -np.inf], name) == [np.inf, -np.inf]


@pytest.mark.parametrize("name", KINDS)
def test_every_value_comes_back(ops, name):
    every = EVERY.view(KINDS[name])
    values = unpacked(ops, every)
    numbers = ~np.isnan(values)
    assert numbers.sum() == (1 << 16) - 2 * ((1 << 10) - 1 if name == "float16" else (1 << 7) - 1)
    assert (packed(ops, values, name)[numbers].view(np.uint16) == EVERY[numbers]).all()
    if name == "float16":
        assert (values[numbers] == every.astype(np.float32)[numbers]).all()


@pytest.mark.parametrize(("make", "count"), [(CpuOps, 1 << 18), pytest.param(cuda_ops, 4001, marks=ON_DEVICE)])
@pytest.mark.parametrize("name", KINDS)
def test_the_compiled_bits_are_the_references(make, count, name):
    compiled, reference, rng = make("float32"), ReferenceOps("float32"), np.random.default_rng(5)
    any_bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    scales = [scale * rng.standard_normal(count // 13) for scale in (1, 1e-4, 1e-6, 3e-8, 1e-39, 3e4, 1e5, 1e38)]
    with np.errstate(over="ignore", invalid="ignore"):  # infinite, and signalling NaN
        x = np.concatenate([*(bits.view(np.float32) for bits in (EDGES, any_bits)), *scales]).astype(np.float32)
    call = Call("pack", {"x": x}, {"packed": np.zeros(x.size, KINDS[name])})
    bits, wanted = (perform(ops, call)["packed"] for ops in (compiled, reference))
    assert bits.tobytes() == wanted.tobytes()
    for accumulate in (False, True):
        sums = {"x": np.linspace(-1, 1, x.size, dtype=np.float32)}
        back = Call("unpack", {"packed": bits}, sums, {"accumulate": accumulate})
        np.testing.assert_array_equal(*(perform(ops, back)["x"] for ops in (compiled, reference)))


@pytest.mark.parametrize("name", KINDS)
def test_addition_is_in_float32(ops, name):
    x = np.array([1.0, 2.0**-20], np.float32)
    ops.unpack(packed(ops, [2.0**-20, 1.0], name), x, accumulate=True)
    assert x.tolist() == [1 + 2.0**-20] * 2


@pytest.mark.parametrize("name", KINDS)
def test_nothing_and_odd_lengths_and_parts_of_arrays(ops, name):
    for count in (0, 1, 3, 17, 1023):
        x = np.arange(count, dtype=np.float32) % 256
        room = np.zeros(count + 2, KINDS[name])
        ops.pack(x, room[1:-1])
        assert room[0] == room[-1] == 0
        assert unpacked(ops, room[1:-1]).tolist() == x.tolist()
