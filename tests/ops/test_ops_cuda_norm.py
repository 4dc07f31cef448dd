"""Batch normalisation on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.normalised import NormStatistics
from tests.ops.cases import Call, statistics_of
from tests.ops.cuda_support import TYPES, agree, cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


# Ghost batches of several slices, the last one cut short; whole vectors of channels, and parts of one.
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 10, 10, 128), (7, 10, 10, 130), (7, 13, 13, 264)])
def test_agrees_where_sums_are_of_several_blocks(types, shape):
    ops, random, channels = cuda_ops(*types), np.random.default_rng(5), shape[-1]

    def draw(*shape):
        return random.standard_normal(shape).astype(ops.dtype)

    x, y, dy = draw(*shape) + 1, draw(*shape), draw(*shape)
    statistics = statistics_of(draw, 7, channels, 3)
    agree(ops, Call("norm_statistics", {"x_NHWC": x}, {"statistics": statistics}))
    inputs, rest = {"x_NHWC": x, "statistics": statistics}, {"relu": True}
    agree(ops, Call("normalise", inputs, {"y_NHWC": y}, rest))
    outputs = {name: draw(channels) for name in ("dgamma_C", "dbeta_C", "mean_C", "var_C")}
    agree(
        ops,
        Call("normalise_back", {**inputs, "dy_NHWC": dy}, {**outputs, "dx_NHWC": draw(*shape)}, {**rest, "total": 9}),
    )


def statistics(ops, x, ghost):
    """(mean, variance) of each ghost batch, of float32 x."""
    groups, channels = -(-len(x) // ghost), x.shape[-1]
    ones = ops.from_host(np.ones(channels, np.float32))
    statistics = NormStatistics(*(ops.empty((groups, channels), "float32") for _ in range(3)), ones, ones, ghost, 1e-5)
    ops.norm_statistics(ops.from_host(x), statistics)
    return ops.to_host(statistics.mean), ops.to_host(statistics.var)


@pytest.mark.parametrize("offset, first", [(0, None), (1000, None), (-30000, None), (0, 1000)])
def test_a_large_mean_costs_no_digits_and_a_first_row_far_from_the_others_few(offset, first):
    """Sums about such a row lose what 16 numbers can cancel, not what all can."""
    x = (offset + np.random.default_rng(0).standard_normal((8, 20, 20, 12))).astype(np.float32)
    x[0, 0, 0] = x[0, 0, 0] if first is None else first
    mean, var = statistics(cuda_ops(), x, 8)
    wide = x.astype(np.float64)
    assert np.allclose(var[0], wide.var(axis=(0, 1, 2)), rtol=1e-5 if first else 2e-6, atol=0)
    assert first or np.allclose(mean[0], wide.mean(axis=(0, 1, 2)), rtol=1.2e-7, atol=1e-7)


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
