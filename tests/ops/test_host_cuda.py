"""The device of the tests does what a device does, and says no where a device would go wrong without a word."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops import texts
from ringtrain.ops.cuda.kernels import Kernels
from ringtrain.ops.cuda.runtime import Matrix
from tests.fakes.device import DeviceRefusal, span_memory
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.host_memory import is_there
from tests.ops.cuda_support import needs_compiler, wide_matrix

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runtime():
    return HostRuntime()


def ramp(runtime, stream, count=4):
    x = runtime.empty((count,), "float32")
    runtime.upload(np.arange(count, dtype=np.float32), x, stream)
    return x


def read(runtime, x, stream):
    host = np.empty(x.shape, x.dtype)
    runtime.download(x, host, stream)
    return host.tolist()


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_memory_is_poisoned_and_out_of_reach(runtime):
    stream = runtime.stream()
    assert np.isnan(runtime.empty((2, 3), "float32")._memory).all()
    assert read(runtime, runtime.empty(2, "uint8"), stream) == [0xA5, 0xA5]
    assert read(runtime, runtime.whole(2), stream) == [0xA5, 0xA5]
    with pytest.raises(DeviceRefusal, match="__array__ of a device array"):
        np.asarray(runtime.empty(3, "float32"))
    with pytest.raises(DeviceRefusal, match=r"1 operations still queued \(first: upload\)"):
        span_memory(ramp(runtime, stream))
    free, total = runtime.memory()
    assert 0 < free < total


def test_16_bit_memory_is_poisoned(runtime):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.isnan(runtime.empty(3, ml_dtypes.bfloat16)._memory.astype(np.float32)).all()


def test_views_are_of_the_same_bytes(runtime):
    stream = runtime.stream()
    x = ramp(runtime, stream)
    runtime.clear(runtime.view(x, "uint8")[4:12], stream)
    assert read(runtime, x, stream) == [0, 0, 0, 3]
    assert runtime.address(x[2:]) == runtime.address(x) + 8


@pytest.mark.parametrize("at, where", [(-1, "before"), (1, "beyond")])
def test_what_is_written_out_of_bounds_is_told(runtime, at, where):
    stream, other = runtime.stream(), runtime.empty(8, "uint8")
    x = runtime.empty((3, 5), "float32")
    around = np.frombuffer(x._memory.base, np.uint8)
    offset = runtime.address(x) - around.ctypes.data
    around[offset - 1 if at < 0 else offset + 60] = 7
    with pytest.raises(DeviceError, match=rf"something was written {where} an array of shape \(3, 5\), float32"):
        stream.synchronize()
    del x, around
    stream.synchronize()  # it is gone
    assert other.size == 8


def test_arrays_of_another_device_are_refused(runtime):
    x = HostRuntime().empty(4, "float32")
    with pytest.raises(DeviceError, match="an array of another device"):
        runtime.clear(x, runtime.stream())
    with pytest.raises(DeviceError, match="an array of a device is wanted, not ndarray"):
        runtime.clear(np.zeros(4), runtime.stream())
    with pytest.raises(DeviceError, match="copy of 16 bytes to 8"):
        mine = runtime.empty(4, "float32")
        runtime.copy(mine, mine[:2], runtime.stream())
    with pytest.raises(DeviceError, match=texts.HOST_ARRAY.pattern(kind="list")):
        runtime.upload([1.0], mine, runtime.stream())


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_unpinned_memory_is_read_at_once_and_pinned_memory_later(runtime):
    stream, host = runtime.stream(), np.ones(4, np.float32)
    pinned = runtime.pinned(16).view(np.float32)
    x, y = runtime.empty(4, "float32"), runtime.empty(4, "float32")
    pinned[:] = 1
    runtime.upload(host, x, stream)
    runtime.upload(pinned, y, stream)
    host[:] = pinned[:] = 2
    assert (read(runtime, x, stream), read(runtime, y, stream)) == ([1] * 4, [2] * 4)


def test_a_pinned_download_is_not_there_before_it_is_waited_for(runtime):
    stream, pinned = runtime.stream(), runtime.pinned(16).view(np.float32)
    pinned[:] = 0
    runtime.download(ramp(runtime, stream), pinned, stream)
    event = stream.record()
    assert pinned.tolist() != [0, 1, 2, 3]
    event.wait()
    assert pinned.tolist() == [0, 1, 2, 3]


def test_streams_wait_for_nothing_but_events(runtime):
    first, second = runtime.stream(), runtime.stream()
    x, y, z = ramp(runtime, first), runtime.empty(4, "float32"), runtime.empty(4, "float32")
    runtime.copy(x, y, second)  # too early
    second.synchronize()
    second.after(first.record())
    runtime.copy(x, z, second)
    assert np.isnan(read(runtime, y, second)).all()
    assert read(runtime, z, second) == [0, 1, 2, 3]


def test_hasty_streams_overtake_who_does_not_let_them_wait():
    for hasty, waits, wanted in ((False, False, [0, 1, 2, 3]), (True, False, [0] * 4), (True, True, [0, 1, 2, 3])):
        runtime = HostRuntime(hasty)
        first, second = runtime.stream(), runtime.stream()
        x, y = ramp(runtime, first), runtime.empty(4, "float32")
        first.synchronize()
        runtime.copy(x, y, second)
        if waits:
            first.after(second.record())
        runtime.clear(x, first)  # not before the copy
        assert read(runtime, y, second) == wanted


def test_an_event_that_is_asked_gets_done_in_the_end(runtime):
    stream = runtime.stream()
    ramp(runtime, stream)
    first, second = stream.record(timed=True), stream.record(timed=True)
    with pytest.raises(DeviceError, match="of which one is not done yet"):
        second.seconds_since(first)
    answers = [second.done() for _ in range(4)]
    assert answers == [False, False, False, True]
    assert 0 <= second.seconds_since(first) < 10
    with pytest.raises(DeviceError, match="not recorded with timed=True"):
        second.seconds_since(stream.record())


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_recorded_work_is_done_at_each_launch(runtime):
    stream, other = runtime.stream(), runtime.stream()
    x, y = ramp(runtime, stream), runtime.empty(4, "float32")
    with runtime.record(stream) as graphs:
        runtime.copy(x, y, stream)
        other.after(stream.record())
        runtime.clear(x, other)
        stream.after(other.record())
    assert [name for name, _ in runtime.waiting()] == ["upload"]
    graphs[0].launch(stream)
    assert (read(runtime, y, stream), read(runtime, x, stream)) == ([0, 1, 2, 3], [0] * 4)
    graphs[0].launch(stream)
    assert read(runtime, y, stream) == [0] * 4


def recorded(action):
    return texts.WHILE_RECORDING.pattern(action=action)


def test_what_cannot_be_recorded(runtime):
    stream, other, host = runtime.stream(), runtime.stream(), np.zeros(4, np.float32)
    x, event = runtime.empty(4, "float32"), stream.record()
    with runtime.record(stream) as graphs:
        pass
    matrix = Matrix(x, 2, 2, 2)
    refused = [
        (recorded("an array was allocated"), lambda: runtime.empty(4, "uint8")),
        (recorded("an array was allocated"), lambda: runtime.whole(4)),
        (recorded("pinned memory was allocated"), lambda: runtime.pinned(4)),
        (recorded("memory that is not pinned was copied"), lambda: runtime.upload(host, x, stream)),
        (recorded("memory that is not pinned was copied"), lambda: runtime.download(x, host, stream)),
        (recorded("a stream was waited for"), other.synchronize),
        (recorded("a product was asked for"), lambda: runtime.product(matrix, matrix, matrix, False, True, stream)),
        (recorded("none.cu was compiled"), lambda: runtime.compile("", "none.cu", ())),
        (recorded("another recording was begun"), lambda: runtime.record(other).__enter__()),
        (recorded("a graph was launched"), lambda: graphs[0].launch(stream)),
        ("wait for an event from before the recording", lambda: stream.after(event)),
        ("from outside of it", lambda: stream.record().wait()),
        ("before its stream waited for another that had joined", lambda: other.after(stream.record())),
    ]
    for words, run in refused:
        with pytest.raises(DeviceError, match=words), runtime.record(stream):
            run()
    with runtime.record(stream):
        event = stream.record()
    with pytest.raises(DeviceError, match="of a recording that has ended"):
        other.after(event)
    assert runtime.empty(4, "uint8").size == 4


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("orders", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("accumulate", [True, False])
def test_a_product(runtime, orders, accumulate):
    random, stream = np.random.default_rng(3), runtime.stream()
    a, b, c = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 5), (5, 4), (3, 4)))
    left, right = (wide_matrix(runtime, stream, *each) for each in zip((a, b), orders, strict=True))
    out = wide_matrix(runtime, stream, c, False)
    runtime.product(left, right, out, accumulate, True, stream)
    rows = np.reshape(read(runtime, out.array, stream)[2:], (3, -1))
    assert rows[:, :4].tolist() == (a @ b + (c if accumulate else 0)).tolist()
    assert (rows[:, 4:] == 100).all()


def test_tf32_has_ten_bits(runtime):
    stream, (a, b, c) = runtime.stream(), [runtime.empty(1, "float32") for _ in range(3)]
    runtime.upload(np.array([1 + 2.0**-12], np.float32), a, stream)
    runtime.upload(np.array([1.0], np.float32), b, stream)
    for precise, wanted in ((True, 1 + 2.0**-12), (False, 1.0)):
        runtime.product(*(Matrix(x, 1, 1, 1) for x in (a, b, c)), False, precise, stream)
        assert read(runtime, c, stream) == [wanted]


def test_products_that_are_none(runtime):
    stream, x, y = runtime.stream(), runtime.empty(6, "float32"), runtime.empty(4, "float64")
    with pytest.raises(DeviceError, match=r"product of \(2, 3\) and \(2, 3\) to \(2, 2\)"):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 2, 3, 3), Matrix(x, 2, 2, 2), False, True, stream)
    with pytest.raises(DeviceError, match="product of float32 and float32 to float64"):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 3, 2, 2), Matrix(y, 2, 2, 2), False, True, stream)
    with pytest.raises(DeviceError, match="a matrix of 3 rows of 2, 3 apart, in an array of 6"):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 3, 2, 3), Matrix(x, 2, 2, 2), False, True, stream)


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────
@needs_compiler
def test_a_kernel_runs_when_it_is_waited_for(runtime):
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = ramp(runtime, stream, 1001), runtime.empty((1001,), "float32")
    add(3, 64, stream, x, x, y, 1001, 0)
    assert np.isnan(y._memory).all()
    assert [name for name, _ in runtime.waiting()] == ["upload", "add"]
    assert read(runtime, y, stream) == [2 * i for i in range(1001)]


@needs_compiler
def test_a_kernel_that_writes_too_much_is_found(runtime):
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = ramp(runtime, stream, 1001), runtime.empty((1000,), "float32")
    add(3, 64, stream, x, x, y, 1001, 0)
    with pytest.raises(DeviceError, match=r"something was written beyond an array of shape \(1000,\), float32"):
        stream.synchronize()


@needs_compiler
def test_launches_that_are_none(runtime):
    kernel = Kernels(runtime, "float32", "float32")("elementwise", "scale").kernel
    stream, x = runtime.stream(), runtime.empty(4, "float32")
    arguments = [x, np.int64(4), np.float64(2)]
    for blocks, threads in (((0,), (32,)), ((1,), (1025,)), ((1,), (32, 64)), ((1, 70000), (1,)), ((1,), (1, 1, 65))):
        with pytest.raises(DeviceError, match=r"kernel scale: .* is not a launch"):
            kernel.launch(blocks, threads, stream, arguments, 0)
    with pytest.raises(DeviceError, match="kernel scale: 232449 bytes of shared memory; a block has 232448"):
        kernel.launch((1,), (32,), stream, arguments, 227 * 1024 + 1)
    with pytest.raises(DeviceError, match="kernel scale: 2 arguments for 3 parameters"):
        kernel.launch((1,), (32,), stream, arguments[:2], 0)
    with pytest.raises(DeviceError, match="kernel scale: long long n got 4 of int"):
        kernel.launch((1,), (32,), stream, [x, 4, np.float64(2)], 0)


@needs_compiler
def test_what_does_not_compile_is_told(runtime):
    with pytest.raises(DeviceError, match=r"(?s)wrong\.cu could not be compiled:.*nothing_of_this"):
        runtime.compile('extern "C" __global__ void f(int n) { nothing_of_this(n); }', "wrong.cu", ())


# ── between processes ─────────────────────────────────────────────────────────────────────────────────────────────
ADD_ONE = """
import sys
import numpy as np
from tests.fakes.host_cuda import HostRuntime

runtime = HostRuntime()
stream, host = runtime.stream(), np.empty(5, np.uint8)
array = runtime.open(bytes.fromhex(sys.argv[1]), 5)
runtime.download(array, host, stream)
runtime.upload(host + np.uint8(1), array, stream)
stream.synchronize()
runtime.close(array)
"""


def test_memory_is_shared_between_processes(runtime):
    stream, x = runtime.stream(), runtime.whole(5)
    runtime.upload(np.arange(5, dtype=np.uint8), x, stream)
    stream.synchronize()
    name = runtime.share(x)
    # Not by multiprocessing, whose tracker would outlive this test as a child of the process.
    subprocess.run([sys.executable, "-c", ADD_ONE, name.hex()], check=True, timeout=60, cwd=ROOT)
    assert (len(name), read(runtime, x, stream)) == (64, [1, 2, 3, 4, 5])


def test_what_cannot_be_shared_or_opened(runtime):
    x, other = runtime.whole(8), HostRuntime()
    name = runtime.share(x)
    for cut in (lambda: runtime.empty(8, "uint8"), lambda: x[:4], lambda: x[4:]):
        with pytest.raises(DeviceError, match=texts.NOT_WHOLE.pattern()):
            runtime.share(cut())
    with pytest.raises(DeviceError, match="cannot be opened by the device that shared it"):
        runtime.open(name, 8)
    with pytest.raises(DeviceError, match="a name of 3 bytes; it has 64"):
        other.open(b"abc", 8)
    there = other.open(name, 8)
    with pytest.raises(DeviceError, match=texts.OPEN_ALREADY.pattern()):
        other.open(name, 8)
    other.close(there)
    x = None  # given up
    with pytest.raises(DeviceError, match="was opened after its owner gave it up"):
        other.open(name, 8)
    with pytest.raises(DeviceError, match=texts.NOT_OPEN.pattern()):
        other.close(there)


def test_shared_memory_is_gone_with_its_owner():
    """It has no name in any file system, so that a process that is killed leaves none."""
    runtime = HostRuntime()
    x = runtime.whole(8)
    name = json.loads(runtime.share(x))[0]
    assert is_there(name)
    del x
    assert not is_there(name)
