"""Batch normalisation on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.cuda.norm import CudaBatchNorm
from tests.ops.cases import Call
from tests.ops.cuda_parts import CASES, TYPES, agree, compare, run_recorded
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


@pytest.mark.parametrize(("types", "n"), CASES, ids=str)
def test_agrees_with_the_reference(types, n):
    compare(CudaBatchNorm, types, n)


# Ghost batches of several slices, the last one cut short; whole vectors of channels, and parts of one.
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 10, 10, 128), (7, 10, 10, 130), (7, 13, 13, 264)])
def test_agrees_where_sums_are_of_several_blocks(types, shape):
    ops, random, groups, channels = cuda_ops(*types), np.random.default_rng(5), 3, shape[-1]

    def draw(*shape):
        return random.standard_normal(shape).astype(ops.dtype)

    x, y, dy, gamma = draw(*shape) + 1, draw(*shape), draw(*shape), draw(channels)
    moments = {"mean_GC": draw(groups, channels), "var_GC": np.abs(draw(groups, channels))}
    rest = {"ghost": 3, "eps": 1e-5, "relu": True}
    given = {"x_NHWC": x, "gamma_C": gamma, "beta_C": draw(channels)}
    agree(ops, Call("batch_norm", given, {"y_NHWC": y, **moments}, rest))
    given = {"x_NHWC": x, "gamma_C": gamma, "y_NHWC": y, **moments, "dy_NHWC": dy}
    outputs = {"dgamma_C": draw(channels), "dbeta_C": draw(channels), "dx_NHWC": draw(*shape)}
    agree(ops, Call("batch_norm_back", given, outputs, rest))


def statistics(ops, x, ghost):
    """(mean, variance) of each ghost batch, of float32 x."""
    groups, channels = -(-len(x) // ghost), x.shape[-1]
    ones = ops.from_host(np.ones(channels, np.float32))
    mean, var, given = (ops.empty(shape, "float32") for shape in [(groups, channels)] * 2 + [x.shape])
    ops.batch_norm(ops.from_host(x), ones, ones, given, mean, var, ghost, 1e-5)
    return ops.to_host(mean), ops.to_host(var)


@pytest.mark.parametrize("offset", [0, 1000, -30000])
def test_a_large_mean_costs_no_digits(offset):
    x = (offset + np.random.default_rng(0).standard_normal((8, 20, 20, 12))).astype(np.float32)
    mean, var = statistics(cuda_ops(), x, 8)
    wide = x.astype(np.float64)
    assert np.allclose(var[0], wide.var(axis=(0, 1, 2)), rtol=2e-6, atol=0)
    assert np.allclose(mean[0], wide.mean(axis=(0, 1, 2)), rtol=1.2e-7, atol=1e-7)


def test_a_first_row_far_from_the_others_costs_few_digits():
    """Sums about it lose what 16 numbers can cancel, not what all can."""
    x = np.random.default_rng(0).standard_normal((8, 20, 20, 12)).astype(np.float32)
    x[0, 0, 0] = 1000
    _, var = statistics(cuda_ops(), x, 8)
    assert np.allclose(var[0], x.astype(np.float64).var(axis=(0, 1, 2)), rtol=1e-5, atol=0)


def test_a_constant_channel_has_no_variance():
    mean, var = statistics(cuda_ops(), np.full((6, 10, 10, 5), 0.1, np.float32), 4)
    assert (mean == np.float32(0.1)).all() and (var == 0).all()


def test_a_ghost_batch_has_the_same_statistics_wherever_it_is():
    ops = cuda_ops()
    x = np.random.default_rng(0).standard_normal((9, 18, 18, 8)).astype(np.float32)
    whole, alone = statistics(ops, x, 3), statistics(ops, x[3:6], 3)
    assert all((a[1] == b[0]).all() for a, b in zip(whole, alone, strict=True))


def test_nan_stays_in_its_channel_and_group():
    ops, x = cuda_ops(), np.random.default_rng(0).standard_normal((4, 4, 4, 8)).astype(np.float32)
    x[1, 2, 3, 5] = np.nan
    mean, var = statistics(ops, x, 2)
    assert np.argwhere(np.isnan(mean)).tolist() == np.argwhere(np.isnan(var)).tolist() == [[0, 5]]
    ones, y = ops.from_host(np.ones(8, np.float32)), ops.empty(x.shape, "float32")
    zeros = ops.from_host(np.zeros(8, np.float32))
    ops.batch_norm_fixed(ops.from_host(x), ones, zeros, zeros, ones, y, 1e-5, relu=True)
    assert np.argwhere(np.isnan(ops.to_host(y))).tolist() == [[1, 2, 3, 5]]


def test_all_of_it_can_be_recorded():
    ops, random, shape = cuda_ops(), np.random.default_rng(1), (6, 10, 10, 128)
    x, dy = (ops.from_host(random.standard_normal(shape).astype(np.float32)) for _ in range(2))
    ones = ops.from_host(np.ones(128, np.float32))
    y, dx = (ops.empty(shape, "float32") for _ in range(2))
    mean, var = (ops.empty((2, 128), "float32") for _ in range(2))
    sums = ops.empty((2, 128), "float64")
    dgamma, dbeta, means, variances = (ops.empty((128,), "float32") for _ in range(4))

    def run():
        ops.batch_norm(x, ones, ones, y, mean, var, 4, 1e-5, relu=True)
        ops.batch_norm_back(x, ones, y, mean, var, dy, dgamma, dbeta, dx, 4, 1e-5, relu=True)
        ops.batch_norm_shares(x, mean, var, 4, 12, means, variances)
        ops.batch_moments(x, sums)
        ops.batch_norm_sums(x, y, means, dy, sums, relu=True)
        ops.batch_norm_dx(x, ones, means, variances, dy, sums, 700, dx, 1e-5)

    run_recorded(ops, run)
    assert np.isfinite(ops.to_host(dx)).all()
