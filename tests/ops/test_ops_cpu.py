"""The fast operations against the reference, and what only they promise: no allocation, NaN kept."""

import ctypes
import inspect
import re
import tracemalloc

import numpy as np
import pytest

from ringtrain.errors import ConfigError
from ringtrain.ops.base import ConvGeometry, Ops, PoolGeometry
from ringtrain.ops.cpu import KERNEL_ARGUMENTS, CpuOps
from ringtrain.ops.cpu.library import ArrayParameter, threads_wanted
from ringtrain.ops.host import HostOps
from ringtrain.ops.pairs import pair_bytes
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cases import calls, of_devices, perform
from tests.ops.cuda_support import TOLERANCE, assert_close, cuda_ops, needs_compiler
from tests.says import says

# Bytes: views, numbers and one 16 KiB chunk of Python's stack, but no array of a call that counts as large.
LITTLE = 20_000


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 0])
def test_every_operation_agrees_with_the_reference(dtype, n):
    cpu, reference = CpuOps(dtype), ReferenceOps(dtype)
    for call in calls(dtype, n):
        wanted, got = perform(reference, call), perform(cpu, call)
        assert wanted.keys() == got.keys()
        for name in wanted:
            assert got[name].dtype == wanted[name].dtype, f"{call}: {name}"
            assert_close(got[name], wanted[name], TOLERANCE[dtype], f"{call}: {name}")


def test_the_table_names_every_operation():
    of_itself = {"describe", "numerics", "threads"}
    memory = {"empty", "address", "pinned", "upload", "to_host", "download", "fetch", "put", "typed", "memory"}
    order = {"synchronize", "segment", "mark", "after", "beside"}
    tested_apart = {*memory, *order, "concat", "concat_back"}
    sizes = {"moment_parts", "positive_bytes"}
    all_of_hosts = HostOps.__abstractmethods__ | Ops.__abstractmethods__
    operations = all_of_hosts - of_itself - tested_apart - sizes
    assert {call.operation for call in calls("float32", 2)} == operations


@pytest.mark.parametrize("kind", [CpuOps, ReferenceOps])
def test_every_operation_has_the_parameters_of_the_interface(kind):
    def parameters(operation):
        return [(each.name, each.default) for each in inspect.signature(operation).parameters.values()]

    by_kernel = KERNEL_ARGUMENTS if kind is CpuOps else {}
    for name in HostOps.__abstractmethods__ - {"threads"}:
        ours = parameters(by_kernel.get(name) or getattr(kind("float32"), name))
        assert ours == parameters(getattr(HostOps, name))[1:], name


@pytest.mark.parametrize(
    "make",
    [
        CpuOps,
        ReferenceOps,
        pytest.param(lambda dtype: cuda_ops(dtype, runtime=HostRuntime()), marks=needs_compiler, id="cuda"),
    ],
)
def test_memory_goes_to_and_fro(make):
    ops = make("float32")
    x = ops.from_host(np.arange(6).reshape(2, 3))
    assert (x.dtype, ops.empty((2,)).dtype) == ("int64", "float32")
    assert ops.to_host(ops.zeros((2,), "uint8")).tolist() == [0, 0]
    y, host, wide = ops.empty((2, 3)), np.zeros((3, 2), np.float32), np.zeros((2, 3))
    ops.upload(ops.to_host(x).astype(np.float64), y)  # converted
    ops.synchronize()
    ops.download(y, host.T)  # not contiguous
    ops.download(y, wide)
    assert host.T.tolist() == wide.tolist() == [[0, 1, 2], [3, 4, 5]]
    pinned = ops.pinned((2, 3), "float32")
    ops.fetch(y, pinned)
    mark = ops.mark()
    assert not ops.records or pinned.tolist() != wide.tolist()
    mark.wait()
    assert mark.done() and pinned.tolist() == wide.tolist()
    copy = ops.to_host(y)
    ops.fill(y, 7)
    assert copy.tolist() == wide.tolist()


@pytest.mark.parametrize("make", [CpuOps, ReferenceOps])
def test_all_are_done_when_they_return(make):
    ops = make("float32")
    mark = ops.mark()
    mark.wait()
    ops.after(mark)
    assert (mark.done(), ops.beside() is ops, ops.records, ops.memory()) == (True, True, False, None)
    assert [ops.segment("same", lambda i=i: i) for i in range(4)] == [0, 1, 2, 3]  # it runs, always


def peak_of_second_call(ops, call):
    """Bytes that a repeated call has allocated at the most, small Python objects included."""
    operation, arrays = getattr(ops, call.operation), {**call.inputs, **call.outputs}
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        operation(**arrays, **call.rest)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks[1:])  # a thread may have some besides


def large(call):
    operands = (*call.inputs.values(), *call.outputs.values())
    arrays = [x for each in operands for x in (each if isinstance(each, list) else [each]) if isinstance(x, np.ndarray)]
    return max(x.nbytes for x in arrays) >= LITTLE


def test_a_second_call_allocates_no_array():
    """But for what is done on devices alone: the step of all-reduces in their memory, and batch normalisation in
    steps."""
    ops, shown = CpuOps("float32"), set()
    for call in filter(large, calls("float32", 128)):
        assert peak_of_second_call(ops, call) < LITTLE or of_devices(call), str(call)
        shown.add(call.operation)
    of_few_numbers = {"mix_totals", "begin_update"}
    assert shown == {call.operation for call in calls("float32", 1)} - of_few_numbers


def nan_at(shape, index):
    x = np.ones(shape, np.float32)
    x[index] = np.nan
    return x


@pytest.mark.parametrize("make", [CpuOps, ReferenceOps])
def test_nan_gets_through(make):
    ops = make("float32")
    x, wrong = nan_at((1, 4, 4, 2), (0, 1, 1, 0)), np.array([True, False])
    pooled, where = np.empty((1, 2, 2, 2), np.float32), np.empty((1, 2, 2, 2), np.uint8)
    ops.max_pool(x, pooled, where, PoolGeometry(2, 2))
    assert (np.isnan(pooled[0, 0, 0]) == wrong).all() and np.isnan(pooled).sum() == 1
    weight, out = np.ones((1, 1, 2, 3), np.float32), np.empty((1, 4, 4, 3), np.float32)
    ops.conv2d(x, weight, np.zeros(3, np.float32), out, ConvGeometry(1), relu=True)
    assert np.isnan(out[0, 1, 1]).all() and np.isnan(out).sum() == 3
    mean, var, ones = np.empty((1, 2), np.float32), np.empty((1, 2), np.float32), np.ones(2, np.float32)
    y = np.empty_like(x)
    ops.batch_norm(x, ones, ones, y, mean, var, 1, 1e-5, relu=True)
    assert (np.isnan(var[0]) == wrong).all() and (np.isnan(y).all(axis=(0, 1, 2)) == wrong).all()
    totals = np.zeros(3)
    ops.softmax_cross_entropy(x.reshape(4, 8), np.zeros(4, np.int32), None, totals, 1.0)
    assert np.isnan(totals[0])


UPDATES = {
    "sgd": lambda ops, w, g, m, v: ops.sgd(w, g, m, 0.1, 0.9, 0.01, True),
    "adamw": lambda ops, w, g, m, v: ops.adamw(w, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.01, 3),
    "adam": lambda ops, w, g, m, v: ops.adam(w, g, m, v, 0.1, 0.9, 0.99, 1e-8, 0.01, 3),
    "rmsprop": lambda ops, w, g, m, v: ops.rmsprop(w, g, v, m, 0.1, 0.9, 0.99, 1e-8, 0.01),
    "adam_direction": lambda ops, w, g, m, v: ops.adam_direction(w, g, m, v, 0.9, 0.99, 1e-8, 0.01, 3),
    "approach": lambda ops, w, g, m, v: ops.approach(w, g, 0.1),
    "scale": lambda ops, w, g, m, v: ops.scale(g, 0.3),
}


@pytest.mark.parametrize("make", [CpuOps, ReferenceOps])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_update_has_the_same_bits_wherever_an_element_lies(make, dtype):
    """In vectors, or in what is left after them: buckets end anywhere."""
    ops, random = make(dtype), np.random.default_rng(3)
    for name, update in UPDATES.items():
        arrays = [ops.from_host(np.abs(random.standard_normal(1000)).astype(dtype)) for _ in range(4)]
        apart = [ops.from_host(array) for array in arrays]
        update(ops, *arrays)
        for start, stop in ((0, 1), (1, 8), (8, 25), (25, 160), (160, 999), (999, 1000)):
            update(ops, *(array[start:stop] for array in apart))
        for whole, parts in zip(arrays, apart, strict=True):
            assert whole.tobytes() == parts.tobytes(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squares_are_summed_in_lanes_of_their_own(dtype):
    """Where an array lies does not count, and the order is the one that is written down."""
    ops, random = CpuOps(dtype), np.random.default_rng(4)
    for count in (0, 1, 63, 64, 65, 1000):
        memory = random.standard_normal(count + 3).astype(dtype)
        lanes, square = np.zeros(64), memory[3:].astype(np.float64) ** 2
        for i, value in enumerate(square):
            lanes[i % 64] += value
        total = 0.0
        for lane in lanes:
            total += lane
        assert ops.square_sum(memory[3:]) == ops.square_sum(memory[3:].copy()) == total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_change_no_bit_of_flat_spans(dtype):
    bits = {}
    for threads in (1, 2, 3):
        ops, random = CpuOps(dtype, threads), np.random.default_rng(5)
        w, g, m, v = (np.abs(random.standard_normal(300_001)).astype(dtype) for _ in range(4))
        packed, pairs = np.zeros(w.size, np.float16), np.zeros(pair_bytes(3000, w.itemsize), np.uint8)
        for update in UPDATES.values():
            update(ops, w, g, m, v)
        ops.add(w, g, w)
        ops.add(m, w, m, relu=True)
        numbers = [ops.square_sum(w), ops.nonfinite(np.where(w > 1, np.inf, w).astype(dtype))]
        ops.add_all([w, m, v], [v, g])
        if dtype == "float32":
            ops.pack(w, packed)
            ops.unpack(packed, m, accumulate=True)
        ops.take_largest(m, pairs, 3000)
        bits[threads] = [numbers, *(x.tobytes() for x in (w, g, m, v, packed, pairs))]
    assert bits[1] == bits[2] == bits[3]


@pytest.mark.parametrize("count", [1, 31, 33, 1000])
def test_additions_write_no_further_than_the_end(count):
    ops, memory = CpuOps("float32"), np.ones((9, count + 2), np.float32)
    rows = [row[1:-1] for row in memory]
    ops.add_all(rows[:8], rows[1:])
    ops.add(rows[0], rows[0], rows[0], relu=True)
    assert all((row == 8).all() for row in rows[1:]) and (rows[0] == 2).all()
    assert (memory[:, 0] == 1).all() and (memory[:, -1] == 1).all()


def test_kernels_take_the_arrays_they_want_alone():
    wants, x = ArrayParameter("float32", read=True), np.zeros((4, 6), np.float32)
    assert ctypes.addressof(wants.from_param(x[1:])) == x[1:].ctypes.data and wants.from_param(None) is None
    x.flags.writeable = False
    assert wants.from_param(x).value == x.ctypes.data
    with pytest.raises(TypeError, match="read-only"):
        ArrayParameter("float32").from_param(x)


def test_what_it_says_of_itself():
    ops = CpuOps("float32", threads=1)
    assert re.fullmatch(r"kernels [0-9a-f]{8}(, products and sums rounded apart)?", ops.numerics())
    assert re.fullmatch(r"CPU (x86-64-v[234]|aarch64), 1 thread", ops.describe())
    ops.threads(2)
    assert ops.describe().endswith(", 2 threads")
    plain = ReferenceOps("float32")
    plain.threads(2)
    assert plain.describe().startswith("NumPy")
    assert plain.compile_stats() == ops.compile_stats() == (0, 0)


@pytest.mark.parametrize(
    ("setting", "wanted"), [(None, 1), ("2", 2), ("3,2", 3), ("", 1), ("many", 1), ("²", 1), ("0", 1), ("1000", 64)]
)
def test_one_thread_unless_the_environment_says(monkeypatch, setting, wanted):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert threads_wanted() == wanted


@pytest.mark.parametrize("make", [CpuOps, ReferenceOps])
def test_relu_of_a_sum_has_no_negative_zero(make):
    """By which comparisons with the reference would pass, and bits differ."""
    ops, x = make("float32"), np.array([-0.0, -1.0, 1.0], np.float32)
    y = np.full(3, 7, np.float32)
    ops.add(x, x, y, relu=True)
    assert y.tolist() == [0, 0, 2] and not np.signbit(y).any()


@pytest.mark.parametrize("make", [CpuOps, ReferenceOps])
def test_a_variance_that_is_rounded_away_is_not_negative(make):
    """All rows but the first are the same number, of which the sum of squares is rounded down, that of values up."""
    ops, x = make("float32"), np.full((1 << 20, 1), float.fromhex("0x1.e331ep+0"), np.float32)
    x[0] = 0
    ones, y, mean, var = np.ones(1, np.float32), np.empty_like(x), np.empty((1, 1), np.float32), np.empty((1, 1), "f4")
    ops.batch_norm(x, ones, ones, y, mean, var, len(x), 1e-9)
    assert 0 <= var[0, 0] < 1e-5 and np.isfinite(y).all()


@pytest.mark.parametrize("count", [0, 65, 100_000, 1 << 31])
def test_more_threads_than_can_be_of_use_are_refused(count):
    with pytest.raises(ConfigError, match="^" + says("--threads", count, 64)):
        CpuOps("float32").threads(count)
