"""Bias and its gradient on the device."""

import numpy as np
import pytest

from ringtrain.ops.cuda.channels import Channels
from ringtrain.ops.cuda.columns import cut_columns, vector_of
from tests.ops.cuda_parts import TOLERANCE, TYPES, assert_close, run_recorded
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = needs_compiler
SHAPES = [(5, 7, 9, 6), (3, 40, 8), (33, 20, 128), (4, 2, 264), (2, 37), (0, 4, 8)]


def channels_of(types=TYPES[0]):
    """(operations, Channels of the same device)"""
    ops = cuda_ops(*types)
    return ops, Channels(ops._device)


def drawn(ops, *shapes):
    random = np.random.default_rng(3)
    return [random.standard_normal(shape).astype(ops.active) for shape in shapes]


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_relu(types, relu):
    ops, part = channels_of(types)
    for shape in SHAPES:
        (y,) = drawn(ops, shape)
        bias = np.linspace(-1, 1, shape[-1], dtype=ops.dtype)
        for b in (bias, None):
            given = ops.from_host(y)
            part.finish(given, None if b is None else ops.from_host(b), relu)
            wanted = y.astype(ops.dtype) + (0 if b is None else b)
            wanted = np.maximum(wanted, 0) if relu else wanted
            assert_close(ops.to_host(given), wanted, TOLERANCE[ops.active.name], f"{shape} {b is None}")


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_of_a_bias(types, relu):
    ops, part = channels_of(types)
    for shape in SHAPES:
        dy, y = drawn(ops, shape, shape)
        wanted = np.where(y > 0, dy, 0).astype(dy.dtype) if relu else dy
        for accumulate in (False, True):
            given, db = ops.from_host(dy), ops.from_host(np.full(shape[-1], 0.5, ops.dtype))
            part.unfinish(given, ops.from_host(y), db, relu, accumulate)
            total = wanted.astype(np.float64).sum(axis=tuple(range(len(shape) - 1))) + 0.5 * accumulate
            assert_close(ops.to_host(db), total, TOLERANCE[ops.dtype.name], f"{shape} {accumulate}")
            assert (ops.to_host(given) == wanted).all()
        part.unfinish(ops.from_host(dy), ops.from_host(y), None, relu, False)


def test_without_a_bias_dy_is_masked_alone():
    ops, part = channels_of()
    dy, y = drawn(ops, (3, 5), (3, 5))
    given = ops.from_host(dy)
    part.unfinish(given, ops.from_host(y), None, True, False)
    assert (ops.to_host(given) == np.where(y > 0, dy, 0)).all()


def test_rows_that_begin_anywhere():
    ops, part = channels_of()
    (memory,) = drawn(ops, (1 + 6 * 8,))
    y, bias = ops.from_host(memory), np.arange(8, dtype=np.float32)
    rows = y[1:].reshape(6, 8)
    assert (vector_of(ops.runtime, 8, rows), vector_of(ops.runtime, 8, y[:48].reshape(6, 8))) == (1, 4)
    part.finish(rows, ops.from_host(bias), False)
    assert np.array_equal(ops.to_host(y), np.concatenate([memory[:1], (memory[1:].reshape(6, 8) + bias).reshape(-1)]))


def test_all_of_it_can_be_recorded():
    ops, part = channels_of()
    dy, y = drawn(ops, (33, 20, 128), (33, 20, 128))
    arrays = [ops.from_host(x) for x in (dy, y, np.zeros(128, np.float32))]

    def run():
        part.unfinish(*arrays, True, True)
        part.finish(arrays[1], arrays[2], True)

    run_recorded(ops, run)
    once = np.where(y > 0, dy, 0).sum(axis=(0, 1), dtype=np.float64)
    assert np.abs(ops.to_host(arrays[2])).max() > np.abs(once).max()


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
