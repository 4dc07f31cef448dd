"""Marks, what is beside, and segments, on a device of the host."""

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.segments import Segments
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import cuda_ops, device_runtime, needs_compiler
from tests.says import says

pytestmark = needs_compiler


@pytest.fixture
def ops():
    return cuda_ops()


def ones(ops, count=4):
    return ops.from_host(np.ones(count, np.float32))


@pytest.mark.device
def test_a_segment_is_run_then_recorded_and_then_done_without_it(ops):
    x, ran = ones(ops), []

    def run():
        ran.append(len(ran))
        ops.scale(x, 2)
        return len(ran)

    values = [ops.segment("double", run) for _ in range(6)]
    assert (ops.to_host(x).tolist(), values, ran) == ([64] * 4, [1, 2, 2, 2, 2, 2], [0, 1])
    assert ops.describe().endswith("; 1 segments recorded")


@pytest.mark.device
def test_the_segments_that_were_asked_for_last_are_kept(ops):
    x, ran = ones(ops), []
    segments = Segments(ops._device, most=2)

    def run(key):
        ran.append(key)
        ops.scale(x, key)

    for key in (2, 2, 2, 3, 3, 3, 2, 5, 2, 3):  # 3 has given way to 5
        segments(key, lambda key=key: run(key))
    assert ran == [2, 2, 3, 3, 5, 3]
    assert ops.to_host(x).tolist() == [2.0**5 * 3**4 * 5] * 4


@pytest.mark.device
@pytest.mark.parametrize(
    "wish, action",
    [
        (lambda ops, x: ops.empty((3,)), "an array was allocated"),
        (lambda ops, x: ops.square_sum(x), "a stream was waited for"),
        (lambda ops, x: ops.upload(np.zeros(4, np.float32), x), "memory that is not pinned was copied"),
    ],
)
def test_a_segment_that_cannot_be_recorded_runs_each_time(ops, wish, action):
    x, y, ran = ones(ops), ones(ops), []

    def run():
        ran.append(None)
        ops.scale(x, 2)
        wish(ops, y)

    for _ in range(4):
        ops.segment("wishes", run)
    assert ops.to_host(x).tolist() == [16] * 4
    assert len(ran) == 5  # once to find that it cannot be
    assert says("1 run anew", action).matches(ops.describe())
    ops.segment("another", lambda: ops.scale(x, 2))
    ops.segment("another", lambda: ops.scale(x, 2))
    assert says("1 segments recorded", "1 run anew", action).matches(ops.describe())


@pytest.mark.device
def test_what_is_wrong_in_a_segment_is_told(ops):
    def run():
        raise DeviceError("nothing is here")

    for _ in range(3):
        with pytest.raises(DeviceError, match="nothing is here"):
            ops.segment("wrong", run)

    def fail():
        raise ZeroDivisionError

    ops.segment("fails", lambda: None)
    with pytest.raises(ZeroDivisionError):
        ops.segment("fails", fail)
    assert ops.to_host(ones(ops)).tolist() == [1] * 4  # recording has ended


@pytest.mark.device
def test_a_recorded_dropout_has_the_key_of_its_time(ops):
    x, y = ones(ops, 200), ops.empty((200,))
    examples, key = ops.from_host(np.zeros(1, np.int64)), ops.from_host(np.array([5], np.uint64))

    def run():
        ops.dropout(x.reshape(1, 200), y.reshape(1, 200), examples, key, 3, 0.5)

    results = []
    for value in (5, 5, 6, 5):
        ops.upload(np.array([value], np.uint64), key)
        ops.segment("pass", run)
        results.append(ops.to_host(y).tolist())
    assert results[0] == results[1] == results[3] != results[2]


@pytest.mark.device
def test_marks_order_what_is_beside():
    for hasty in (False, True):
        ops = cuda_ops(runtime=device_runtime(hasty))
        beside = ops.beside()
        x, y = ones(ops), ops.empty((4,))
        ops.scale(x, 3)
        beside.after(ops.mark())
        beside.copy(x, y)
        ops.after(beside.mark())
        ops.fill(x, 7)
        ops.synchronize()
        assert (ops.to_host(y).tolist(), ops.to_host(x).tolist()) == ([3] * 4, [7] * 4)


def test_nothing_but_marks_orders_what_is_beside():
    ops = cuda_ops(runtime=HostRuntime())  # of which is known when it does what
    beside = ops.beside()
    x, y = ones(ops), ops.zeros((4,))
    ops.synchronize()
    ops.scale(x, 3)
    beside.copy(x, y)
    beside.synchronize()
    assert beside.to_host(y).tolist() == [1] * 4
    assert (beside.dtype, beside.precision, beside.runtime) == (ops.dtype, ops.precision, ops.runtime)


@pytest.mark.device
def test_scratch_is_each_order_s_own_and_grows(ops):
    device, beside = ops._device, ops._device.beside()
    first, address = device.scratch("name", (2, 3), "float32"), device.runtime.address
    assert first.shape == (2, 3) and address(device.scratch("name", 4, "float32")) == address(first)
    assert address(beside.scratch("name", 6, "float32")) != address(first)
    assert device.scratch("name", 4, "int32").dtype == "int32" and device.scratch("name", 100, "float32").size == 100
    small, large = device.pinned("host", 2, "float64"), device.pinned("host", 20, "float64")
    assert (small.size, large.size, device.pinned("host", 3, "int32").size) == (2, 20, 3)
