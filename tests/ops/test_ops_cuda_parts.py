"""Every part of the operations on a GPU: beside the reference, and recorded; the gradient of a bias, the cut of rows by
which sums of channels are made, and pooling."""

import numpy as np
import pytest

from ringtrain.ops.cuda import activations, loss, norm, pool, sequences
from ringtrain.ops.cuda.channels import cut_columns, unfinish, vector_of
from ringtrain.ops.geometry import PoolGeometry
from tests.ops.cases import is_large, prepare, wide_calls
from tests.ops.cuda_support import (
    PARTS,
    TOLERANCE,
    TYPES,
    agree,
    assert_close,
    calls_of,
    cuda_ops,
    on_device,
    operations,
)  # fmt: skip

NARROW = pool, norm, loss, activations, sequences  # of 16 bits too
CASES = [(part, types) for part in PARTS for types in (TYPES if part in NARROW else TYPES[:2])]
NUMBERS = "square_sum", "nonfinite"  # which are waited for


def calls_for(part, dtype, n):
    """Of convolutions those that fit one tile: test_ops_cuda_convolution.py has the others."""
    wide = [call for call in wide_calls(dtype) if n and call.operation in operations(part)]
    return wide + [call for call in calls_of((part,), dtype, n) if not is_large(call)]


@on_device
@pytest.mark.parametrize("n", [5, 0])
@pytest.mark.parametrize(("part", "types"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_agrees_with_the_reference(part, types, n):
    ops = cuda_ops(*types)
    for call in calls_for(part, ops.dtype, n):
        agree(ops, call)


@on_device
@pytest.mark.parametrize("part", PARTS)
def test_what_is_recorded_is_what_is_done_plainly(part):
    """Three times: as it is, recorded, which refuses allocations and waits, and from what was recorded."""
    ops, calls = cuda_ops(), [call for call in calls_for(part, "float32", 5) if call.operation not in NUMBERS]
    for number, call in enumerate(calls):
        (plain, wanted), (recorded, got) = prepare(ops, call), prepare(ops, call)
        for _ in range(3):
            plain()
            ops.segment(number, recorded)
        for name, x in wanted().items():
            assert got()[name].tobytes() == x.tobytes(), f"{call}: {name}"
    assert ops.describe().endswith(f"; {len(calls)} segments recorded") or not calls


# ── channels ──────────────────────────────────────────────────────────────────────────────────────────────────────
CHANNELS = [(5, 7, 9, 6), (3, 40, 8), (33, 20, 128), (4, 2, 264), (2, 37), (0, 4, 8)]


def drawn(ops, *shapes):
    random = np.random.default_rng(3)
    return [random.standard_normal(shape).astype(ops.active) for shape in shapes]


@on_device
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_of_a_bias(types, relu):
    ops = cuda_ops(*types)
    for shape in CHANNELS:
        dy, y = drawn(ops, shape, shape)
        wanted = np.where(y > 0, dy, 0).astype(dy.dtype) if relu else dy
        for accumulate in (False, True):
            gradient, db = ops.from_host(dy), ops.from_host(np.full(shape[-1], 0.5, ops.dtype))
            unfinish(ops._device, gradient, ops.from_host(y), db, relu, accumulate)
            total = wanted.astype(np.float64).sum(axis=tuple(range(len(shape) - 1))) + 0.5 * accumulate
            assert_close(ops.to_host(db), total, TOLERANCE[ops.dtype.name], f"{shape} {accumulate}")
            assert (ops.to_host(gradient) == wanted).all()
        unfinish(ops._device, ops.from_host(dy), ops.from_host(y), None, relu, False)


@on_device
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


# ── pooling ───────────────────────────────────────────────────────────────────────────────────────────────────────
@on_device
@pytest.mark.parametrize("channels", [2, 8])
def test_the_first_of_equals_and_a_nan(channels):
    ops, x = cuda_ops(), np.ones((1, 4, 4, channels), np.float32)
    x[0, 1, 1, 0] = np.nan
    y, where = ops.empty((1, 2, 2, channels), "float32"), ops.empty((1, 2, 2, channels), "uint8")
    ops.max_pool(ops.from_host(x), y, where, PoolGeometry(2, 2))
    assert np.argwhere(np.isnan(ops.to_host(y))).tolist() == [[0, 0, 0, 0]]
    assert np.argwhere(ops.to_host(where)).tolist() == [[0, 0, 0, 0]] and ops.to_host(where)[0, 0, 0, 0] == 3


@on_device
def test_a_slice_of_bytes_that_begins_anywhere():
    ops, random = cuda_ops(), np.random.default_rng(2)
    x = ops.from_host(random.standard_normal((1, 4, 4, 8)).astype(np.float32))
    y, memory = ops.empty((1, 2, 2, 8), "float32"), ops.empty((1 + 32,), "uint8")
    where = memory[1:].reshape((1, 2, 2, 8))
    dx = ops.empty(x.shape, "float32")
    ops.max_pool(x, y, where, PoolGeometry(2, 2))
    ops.max_pool_back(y, where, dx, PoolGeometry(2, 2))
    image, back = ops.to_host(x), ops.to_host(dx)
    assert ((back == image) | (back == 0)).all() and (back != 0).sum() == 32
