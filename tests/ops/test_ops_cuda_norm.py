"""Batch normalisation on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.cuda.norm import BatchNorm
from tests.ops.cases import Call
from tests.ops.cuda_parts import TYPES, Part, agree, compare, needs_compiler, replayed

pytestmark = needs_compiler
OPERATIONS = {
    "batch_norm", "batch_norm_back", "batch_norm_shares", "batch_norm_fixed", "batch_moments", "batch_norm_sums",
    "batch_norm_dx",
}  # fmt: skip


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_agrees_with_the_reference(types):
    assert compare(Part(BatchNorm, *types), OPERATIONS, 5) == OPERATIONS


def test_agrees_with_the_reference_where_there_is_no_example():
    assert compare(Part(BatchNorm), OPERATIONS, 0) == OPERATIONS


# Ghost batches of several slices, the last one cut short; whole vectors of channels, and parts of one.
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 10, 10, 128), (7, 10, 10, 130), (7, 13, 13, 264)])
def test_agrees_where_sums_are_of_several_blocks(types, shape):
    part, random, groups, channels = Part(BatchNorm, *types), np.random.default_rng(5), 3, shape[-1]

    def draw(*shape):
        return random.standard_normal(shape).astype(part.device.real)

    x, y, dy, gamma = draw(*shape) + 1, draw(*shape), draw(*shape), draw(channels)
    moments = {"mean_GC": draw(groups, channels), "var_GC": np.abs(draw(groups, channels))}
    rest = {"ghost": 3, "eps": 1e-5, "relu": True}
    given = {"x_NHWC": x, "gamma_C": gamma, "beta_C": draw(channels)}
    agree(part, Call("batch_norm", given, {"y_NHWC": y, **moments}, rest))
    given = {"x_NHWC": x, "gamma_C": gamma, "y_NHWC": y, **moments, "dy_NHWC": dy}
    outputs = {"dgamma_C": draw(channels), "dbeta_C": draw(channels), "dx_NHWC": draw(*shape)}
    agree(part, Call("batch_norm_back", given, outputs, rest))


def statistics(part, x, ghost):
    """(mean, variance) of each ghost batch, of float32 x."""
    groups, channels = -(-len(x) // ghost), x.shape[-1]
    ones = part.from_host(np.ones(channels, np.float32))
    mean, var, given = (part.runtime.empty(shape, "float32") for shape in [(groups, channels)] * 2 + [x.shape])
    part.batch_norm(part.from_host(x), ones, ones, given, mean, var, ghost, 1e-5)
    return part.to_host(mean), part.to_host(var)


@pytest.mark.parametrize("offset", [0, 1000, -30000])
def test_a_large_mean_costs_no_digits(offset):
    x = (offset + np.random.default_rng(0).standard_normal((8, 20, 20, 12))).astype(np.float32)
    mean, var = statistics(Part(BatchNorm), x, 8)
    wide = x.astype(np.float64)
    assert np.allclose(var[0], wide.var(axis=(0, 1, 2)), rtol=2e-6, atol=0)
    assert np.allclose(mean[0], wide.mean(axis=(0, 1, 2)), rtol=1.2e-7, atol=1e-7)


def test_a_first_row_far_from_the_others_costs_few_digits():
    """Sums about it lose what 16 numbers can cancel, not what all can."""
    x = np.random.default_rng(0).standard_normal((8, 20, 20, 12)).astype(np.float32)
    x[0, 0, 0] = 1000
    _, var = statistics(Part(BatchNorm), x, 8)
    assert np.allclose(var[0], x.astype(np.float64).var(axis=(0, 1, 2)), rtol=1e-5, atol=0)


def test_a_constant_channel_has_no_variance():
    mean, var = statistics(Part(BatchNorm), np.full((6, 10, 10, 5), 0.1, np.float32), 4)
    assert (mean == np.float32(0.1)).all() and (var == 0).all()


def test_a_ghost_batch_has_the_same_statistics_wherever_it_is():
    part = Part(BatchNorm)
    x = np.random.default_rng(0).standard_normal((9, 18, 18, 8)).astype(np.float32)
    whole, alone = statistics(part, x, 3), statistics(part, x[3:6], 3)
    assert all((a[1] == b[0]).all() for a, b in zip(whole, alone, strict=True))


def test_nan_stays_in_its_channel_and_group():
    part, x = Part(BatchNorm), np.random.default_rng(0).standard_normal((4, 4, 4, 8)).astype(np.float32)
    x[1, 2, 3, 5] = np.nan
    mean, var = statistics(part, x, 2)
    assert np.argwhere(np.isnan(mean)).tolist() == np.argwhere(np.isnan(var)).tolist() == [[0, 5]]
    ones, y = part.from_host(np.ones(8, np.float32)), part.runtime.empty(x.shape, "float32")
    zeros = part.from_host(np.zeros(8, np.float32))
    part.batch_norm_fixed(part.from_host(x), ones, zeros, zeros, ones, y, 1e-5, relu=True)
    assert np.argwhere(np.isnan(part.to_host(y))).tolist() == [[1, 2, 3, 5]]


def test_all_of_it_can_be_recorded():
    part, random, shape = Part(BatchNorm), np.random.default_rng(1), (6, 10, 10, 128)
    x, dy = (part.from_host(random.standard_normal(shape).astype(np.float32)) for _ in range(2))
    ones = part.from_host(np.ones(128, np.float32))
    y, dx = (part.runtime.empty(shape, "float32") for _ in range(2))
    mean, var = (part.runtime.empty((2, 128), "float32") for _ in range(2))
    sums = part.runtime.empty((2, 128), "float64")
    dgamma, dbeta, means, variances = (part.runtime.empty((128,), "float32") for _ in range(4))

    def run():
        part.batch_norm(x, ones, ones, y, mean, var, 4, 1e-5, relu=True)
        part.batch_norm_back(x, ones, y, mean, var, dy, dgamma, dbeta, dx, 4, 1e-5, relu=True)
        part.batch_norm_shares(x, mean, var, 4, 12, means, variances)
        part.batch_moments(x, sums)
        part.batch_norm_sums(x, y, means, dy, sums, relu=True)
        part.batch_norm_dx(x, ones, means, variances, dy, sums, 700, dx, 1e-5)

    replayed(part, run)
    assert np.isfinite(part.to_host(dx)).all()
