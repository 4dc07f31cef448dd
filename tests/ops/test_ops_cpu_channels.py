"""What the CPU's operations with a value a channel promise beside results: the same bits for any number of threads,
wherever an array lies, whatever else is in the batch; an order of sums that is written down; NaN where it belongs."""

import numpy as np
import pytest

from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.cpu.library import CpuKernels
from tests.ops.cases import channel_calls
from tests.ops.test_ops_cpu_layers import Misaligned, assert_same_bits

CHANNELS = [1, 3, 10, 16, 50, 127, 500, 513, 2049]
PIXELS = 40_000  # about so many elements: more than one thread's


def batch(channels, dtype, n=5, seed=0):
    """Arrays x, y, dy, a of [n, rows, channels], then gamma and beta."""
    random = np.random.default_rng(seed)
    shape = (n, max(2, PIXELS // (n * channels)), channels)
    arrays = [random.standard_normal(shape).astype(dtype) for _ in range(4)]
    return *arrays, random.standard_normal(channels).astype(dtype), random.standard_normal(channels).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_the_same_bits_for_any_threads_and_any_place_in_memory(channels, dtype):
    several = [*(CpuOps(dtype, threads) for threads in (1, 2, 3)), *(Misaligned(dtype, shift) for shift in (1, 5))]
    assert_same_bits(several, channel_calls(dtype, (5, max(2, PIXELS // (5 * channels)), channels), 2))


@pytest.mark.parametrize("channels", [3, 16, 513])
def test_a_ghost_batch_has_the_same_bits_alone(channels):
    ops, (x, _, dy, _, gamma, beta) = CpuOps("float32"), batch(channels, "float32")

    def run(part, ghost):
        groups = -(-len(x[part]) // ghost)
        y, dx = np.empty_like(x[part]), np.empty_like(x[part])
        mean, var = np.empty((groups, channels), "f4"), np.empty((groups, channels), "f4")
        ops.batch_norm(x[part], gamma, beta, y, mean, var, ghost, 1e-5, relu=True)
        sums = np.empty((2, channels), "f4")
        ops.batch_norm_back(x[part], gamma, y, mean, var, dy[part].copy(), *sums, dx, ghost, 1e-5, relu=True)
        return [*zip(y, dx, strict=True)], mean, var

    (whole, mean, var), ghosts = run(slice(None), 2), [slice(0, 2), slice(2, 4), slice(4, 5)]
    for g, part in enumerate(ghosts):
        alone = run(part, 5)
        assert np.array_equal(alone[0], whole[part])
        assert np.array_equal([mean[g], var[g]], [alone[1][0], alone[2][0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "width"), [(1, 128), (3, 144), (10, 160), (16, 128), (128, 128), (513, 513)])
def test_rows_are_summed_in_the_order_that_is_written_down(channels, width, dtype):
    """Rows are taken `width` elements at a time; 32 of these are added in the array's type, and those in float64."""
    dy = batch(channels, dtype)[2].reshape(-1)
    rows = np.zeros((-(-dy.size // width), width), dtype)
    rows.reshape(-1)[: dy.size] = dy
    total = np.zeros(channels)
    for block in range(0, len(rows), 128):
        wide = np.zeros(width)
        for chunk in range(block, min(block + 128, len(rows)), 32):
            part = np.zeros(width, dtype)
            for row in rows[chunk : chunk + 32]:
                part += row
            wide += part
        of_block = np.zeros(channels)
        for repeat in wide.reshape(-1, channels):
            of_block += repeat
        total += of_block
    db = np.zeros(channels, dtype)
    kernels = CpuKernels(np.dtype(dtype))
    kernels.unfinish(dy.copy(), dy, db, dy.size, channels, False, False)
    assert db.tobytes() == total.astype(dtype).tobytes()


@pytest.mark.parametrize("channels", CHANNELS)
def test_mask_and_gradient_of_bias(channels):
    kernels, (_, y, dy, _, _, before) = CpuKernels(np.dtype("float64")), batch(channels, "float64")
    for relu in (False, True):
        masked = np.where(y > 0, dy, 0) if relu else dy
        for accumulate in (False, True):
            got, db = dy.copy(), before.copy()
            kernels.unfinish(got, y, db, got.size, channels, relu, accumulate)
            assert np.array_equal(got, masked)
            np.testing.assert_allclose(db, masked.sum(axis=(0, 1)) + accumulate * before, rtol=1e-10, atol=1e-10)
        got = dy.copy()
        kernels.unfinish(got, y, None, got.size, channels, relu, False)
        assert np.array_equal(got, masked)


@pytest.mark.parametrize("channels", [3, 16, 500])
def test_nan_stays_in_its_channel_and_ghost(channels):
    ops, (x, _, dy, a, gamma, beta) = CpuOps("float32"), batch(channels, "float32", n=4)
    y, dx, mean, var = np.empty_like(x), np.empty_like(x), np.empty((2, channels), "f4"), np.empty((2, channels), "f4")
    x[3, 1, 2] = np.nan  # in the second ghost
    a[0, 0, 0] = np.nan
    ops.batch_norm(x, gamma, beta, y, mean, var, 2, 1e-5, relu=True, a_NHWC=a)
    wrong = np.zeros(x.shape, bool)
    wrong[2:, :, 2] = wrong[0, 0, 0] = True
    assert np.array_equal(np.isnan(y), wrong) and (y[~wrong] >= 0).all()
    dgamma, dbeta = np.empty(channels, "f4"), np.empty(channels, "f4")
    ops.batch_norm_back(x, gamma, y, mean, var, dy, dgamma, dbeta, dx, 2, 1e-5, relu=True)
    wrong[0, 0, 0] = False
    assert not dy[np.isnan(y)].any()  # a NaN is not positive
    assert np.array_equal(np.isnan(dx), wrong) and np.flatnonzero(np.isnan(dgamma)).tolist() == [2]
    assert np.isfinite(dbeta).all()


@pytest.mark.parametrize("channels", CHANNELS)
def test_a_large_mean_costs_no_digits(channels):
    ops, x = CpuOps("float32"), batch(channels, "float32")[0] + np.float32(1000)
    moments, one = np.empty((2, channels)), np.ones(channels, "f4")
    ops.batch_moments(x, moments)
    mean, var, y = np.empty((1, channels), "f4"), np.empty((1, channels), "f4"), np.empty_like(x)
    ops.batch_norm(x, one, 0 * one, y, mean, var, len(x), 1e-5)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(moments[0], wide.mean(axis=(0, 1)), rtol=1e-7)
    np.testing.assert_allclose(moments[1], wide.var(axis=(0, 1)), rtol=1e-5)
    assert np.abs(y - (wide - wide.mean(axis=(0, 1))) / wide.std(axis=(0, 1))).max() < 2e-3
