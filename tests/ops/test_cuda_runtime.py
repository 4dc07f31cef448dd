"""The contract of a runtime: kept by the device of the tests, and by a real one where there is one."""

from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda.kernels import Kernels
from ringtrain.ops.cuda.runtime import Matrix
from tests.ops.cuda_support import assert_product, device_runtime, needs_compiler
from tests.says import says

pytestmark = pytest.mark.device


@pytest.fixture
def runtime():
    return device_runtime()


def put(runtime, stream, host):
    x = runtime.empty(host.shape, host.dtype)
    runtime.upload(host, x, stream)
    return x


def ramp(runtime, stream, count=4):
    return put(runtime, stream, np.arange(count, dtype=np.float32))


def read(runtime, x, stream):
    host = np.empty(x.shape, x.dtype)
    runtime.download(x, host, stream)
    return host.tolist()


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_memory_goes_to_and_fro(runtime):
    stream, x = runtime.stream(), runtime.whole(16)
    runtime.copy(ramp(runtime, stream), x, stream)
    numbers = runtime.view(x, "float32")
    assert read(runtime, numbers, stream) == [0, 1, 2, 3]
    runtime.clear(x[4:12], stream)
    assert read(runtime, numbers, stream) == [0, 0, 0, 3]
    assert runtime.address(numbers[2:]) == runtime.address(x) + 8
    free, total = runtime.memory()
    assert 0 < free < total


def test_what_does_not_fit_is_refused(runtime):
    stream, x = runtime.stream(), runtime.empty(4, "float32")
    with pytest.raises(DeviceError, match=says(16, 8)):
        runtime.copy(x, x[:2], stream)
    with pytest.raises(DeviceError, match=says("list")):
        runtime.upload([1.0], x, stream)
    with pytest.raises(DeviceError, match=says("ndarray")):
        runtime.download(x, np.empty(8, np.float32)[::2], stream)
    with pytest.raises(DeviceFullError, match=says("--precision", "4096.00 GiB", f"{1 << 42:,}")):
        runtime.empty(1 << 42, "uint8")
    with pytest.raises(DeviceError, match=says("Runtime", "shared")):
        runtime.share(runtime.whole(16)[:4])


def test_unpinned_memory_is_read_at_once_and_pinned_memory_is_there_after_an_event(runtime):
    stream, host, pinned = runtime.stream(), np.ones(4, np.float32), runtime.pinned(16).view(np.float32)
    x = put(runtime, stream, host)
    host[:] = 2
    runtime.download(x, pinned, stream)
    first, event = stream.record(timed=True), stream.record(timed=True)
    event.wait()
    assert event.done() and pinned.tolist() == [1] * 4
    assert 0 <= event.seconds_since(first) < 10


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_recorded_work_is_done_at_each_launch_that_of_a_stream_that_joined_too(runtime):
    stream, other, pinned = runtime.stream(), runtime.stream(), runtime.pinned(16).view(np.float32)
    x, y = runtime.empty(4, "float32"), ramp(runtime, stream)
    pinned[:] = 3
    with runtime.record(stream) as graphs:
        runtime.upload(pinned, x, stream)
        runtime.copy(x, y, stream)
        other.after(stream.record())
        runtime.clear(x, other)
        stream.after(other.record())
    assert read(runtime, y, stream) == [0, 1, 2, 3]
    for value in (3, 4):
        pinned[:] = value
        graphs[0].launch(stream)
        assert (read(runtime, y, stream), read(runtime, x, stream)) == ([value] * 4, [0] * 4)


def test_what_cannot_be_recorded(runtime):
    stream, host, x = runtime.stream(), np.zeros(4, np.float32), runtime.empty(4, "float32")
    event, matrix = stream.record(), Matrix(x, 2, 2, 2)
    with runtime.record(stream) as graphs:
        runtime.clear(x, stream)
    refused = [
        ("an array was allocated", lambda: runtime.empty(4, "uint8")),
        ("an array was allocated", lambda: runtime.whole(4)),
        ("pinned memory was allocated", lambda: runtime.pinned(4)),
        ("memory that is not pinned was copied", lambda: runtime.upload(host, x, stream)),
        ("memory that is not pinned was copied", lambda: runtime.download(x, host, stream)),
        ("a stream was waited for", stream.synchronize),
        ("an event was waited for", event.wait),
        ("an array was allocated", lambda: runtime.product(matrix, matrix, matrix, False, True, stream)),
        ("none.cu was compiled", lambda: runtime.compile("", "none.cu", ())),
        ("another recording was begun", lambda: runtime.record(stream).__enter__()),
        ("a graph was launched", lambda: graphs[0].launch(stream)),
    ]
    for action, run in refused:
        with pytest.raises(DeviceError, match=says(action)), runtime.record(stream):
            run()
    assert runtime.empty(4, "uint8").size == 4


def test_a_product_after_the_first_of_its_stream_is_recorded(runtime):
    stream, x, y, z = runtime.stream(), *(runtime.empty(4, "float32") for _ in range(3))
    a, b, c = (Matrix(each, 2, 2, 2) for each in (x, y, z))
    for array in (x, y, z):
        runtime.clear(array, stream)
    runtime.product(a, b, c, False, True, stream)
    with runtime.record(stream) as graphs:
        runtime.product(a, b, c, True, True, stream)
    for factor in (1, 2):
        runtime.upload(np.full(4, factor, np.float32), x, stream)
        runtime.upload(np.arange(4, dtype=np.float32), y, stream)
        graphs[0].launch(stream)
        graphs[0].launch(stream)
    assert read(runtime, z, stream) == [12, 24, 12, 24]


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("orders", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype, out", [("float32", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_a_product(runtime, orders, dtype, out):
    device = SimpleNamespace(runtime=runtime, stream=(stream := runtime.stream()))
    assert_product(device, lambda *operands: runtime.product(*operands, stream), dtype, out, orders)


def test_precise_products_are_of_more_than_ten_bits(runtime):
    stream = runtime.stream()
    a, b, c = (put(runtime, stream, np.full(1, x, np.float32)) for x in (1 + 2.0**-12, 1, 0))
    runtime.product(*(Matrix(x, 1, 1, 1) for x in (a, b, c)), False, True, stream)
    assert read(runtime, c, stream) == [1 + 2.0**-12]


def test_products_that_are_none(runtime):
    stream, x, y = runtime.stream(), runtime.empty(6, "float32"), runtime.empty(4, "float64")
    with pytest.raises(DeviceError, match=says("2 × 3", "2 × 2")):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 2, 3, 3), Matrix(x, 2, 2, 2), False, True, stream)
    with pytest.raises(DeviceError, match=says("float32", "float64")):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 3, 2, 2), Matrix(y, 2, 2, 2), False, True, stream)


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────
@needs_compiler
def test_a_kernel_runs_in_the_order_of_its_stream(runtime):
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = ramp(runtime, stream, 1001), runtime.empty((1001,), "float32")
    before = sum(runtime.modules)
    add(3, 64, stream, x, x, y, 1001, 0)
    assert read(runtime, y, stream) == [2 * i for i in range(1001)]
    Kernels(runtime, "float32", "float32")("elementwise", "add")
    assert sum(runtime.modules) == before + 1


@needs_compiler
def test_what_does_not_compile_is_told(runtime):
    source = 'extern "C" __global__ void f(int n) { nothing_of_this(n); }'
    with pytest.raises(DeviceError, match="nothing_of_this"):
        runtime.compile(source, "wrong.cu", ())
