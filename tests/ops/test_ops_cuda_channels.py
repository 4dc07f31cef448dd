"""The gradient of a bias on the device, and the cut of rows that sums of channels are made by."""

import numpy as np
import pytest

from ringtrain.ops.cuda.channels import cut_columns, unfinish, vector_of
from tests.ops.cuda_support import TOLERANCE, TYPES, assert_close, cuda_ops, needs_compiler

pytestmark = needs_compiler
SHAPES = [(5, 7, 9, 6), (3, 40, 8), (33, 20, 128), (4, 2, 264), (2, 37), (0, 4, 8)]


def drawn(ops, *shapes):
    random = np.random.default_rng(3)
    return [random.standard_normal(shape).astype(ops.active) for shape in shapes]


@pytest.mark.device
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_of_a_bias(types, relu):
    ops = cuda_ops(*types)
    for shape in SHAPES:
        dy, y = drawn(ops, shape, shape)
        wanted = np.where(y > 0, dy, 0).astype(dy.dtype) if relu else dy
        for accumulate in (False, True):
            gradient, db = ops.from_host(dy), ops.from_host(np.full(shape[-1], 0.5, ops.dtype))
            unfinish(ops._device, gradient, ops.from_host(y), db, relu, accumulate)
            total = wanted.astype(np.float64).sum(axis=tuple(range(len(shape) - 1))) + 0.5 * accumulate
            assert_close(ops.to_host(db), total, TOLERANCE[ops.dtype.name], f"{shape} {accumulate}")
            assert (ops.to_host(gradient) == wanted).all()
        unfinish(ops._device, ops.from_host(dy), ops.from_host(y), None, relu, False)


@pytest.mark.device
def test_without_a_bias_dy_is_masked_alone():
    ops = cuda_ops()
    dy, y = drawn(ops, (3, 5), (3, 5))
    gradient = ops.from_host(dy)
    unfinish(ops._device, gradient, ops.from_host(y), None, True, False)
    assert (ops.to_host(gradient) == np.where(y > 0, dy, 0)).all()


@pytest.mark.device
def test_rows_that_begin_anywhere():
    ops = cuda_ops()
    (memory,) = drawn(ops, (1 + 6 * 8,))
    dy, db = ops.from_host(memory), ops.empty((8,))
    rows = dy[1:].reshape(6, 8)
    assert (vector_of(ops.runtime, 8, rows), vector_of(ops.runtime, 8, dy[:48].reshape(6, 8))) == (1, 4)
    unfinish(ops._device, rows, rows, db, True, False)
    wanted = np.maximum(memory[1:].reshape(6, 8), 0)
    assert np.array_equal(ops.to_host(dy), np.concatenate([memory[:1], wanted.reshape(-1)]))
    assert_close(ops.to_host(db), wanted.sum(axis=0), 1e-6, "")


def test_the_cut_has_every_row_once_and_threads_that_fit():
    for rows, group, channels, vector in [(1, 1, 1, 1), (100, 30, 37, 1), (10**6, 3000, 64, 8), (5000, 5000, 2048, 4)]:
        cut = cut_columns(rows, group, channels, vector)
        assert cut.threads[0] * cut.threads[1] <= 256
        assert cut.threads[0] * cut.blocks[1] * vector >= channels
        assert (cut.slices - 1) * cut.slice_rows < cut.group_rows <= cut.slices * cut.slice_rows
        assert cut.blocks[0] == cut.groups * cut.slices and cut.groups == -(-rows // group)
        assert cut.finish_threads[0] * cut.finish_threads[1] <= 1024


def test_the_cut_of_a_group_is_the_same_whatever_is_beside_it():
    alone, among = cut_columns(3000, 3000, 64, 8), cut_columns(10**6, 3000, 64, 8)
    assert (alone.slices, alone.slice_rows, alone.threads) == (among.slices, among.slice_rows, among.threads)
