"""CupyRuntime over a CuPy that is not there: what it asks of CuPy, and what it makes of its errors."""

import builtins
import subprocess
import sys
import threading

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops import texts
from ringtrain.ops.cuda import checks, identity
from ringtrain.ops.cuda.checks import check_usable
from ringtrain.ops.cuda.cupy_runtime import CupyRuntime
from ringtrain.ops.cuda.runtime import Matrix
from tests.fakes import fake_cupy
from tests.fakes.fake_cupy import FakeCupy
from tests.ops.cuda_support import wide_matrix

SOURCE = 'extern "C" __global__ void twice(const float *x, float *y, int n) {}'


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def runtime(cupy, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("ringtrain.ops.cuda.cupy_runtime._headers", lambda: ("-I/headers",))
    monkeypatch.setattr(identity, "DRIVER", "libnone.so")
    return CupyRuntime(cupy, 0)


def test_facts(runtime):
    facts = runtime.facts
    assert (facts.name, facts.capability, facts.processors, facts.shared_bytes) == ("Fake", (9, 0), 132, 232448)
    assert (facts.driver, facts.runtime, facts.uuid) == ((13, 0), (13, 2), "GPU-78797a7b-7c7d-7e7f-8081-828384858687")


class FakeDriver:
    """libcuda, of two devices; ``fails``: the function that returns an error."""

    def __init__(self, uuids, fails=""):
        self.uuids, self.fails, self.log = uuids, fails, []

    def _do(self, name):
        self.log.append(name)
        return 999 if name == self.fails else 0

    def cuInit(self, flags):
        return self._do("cuInit")

    def cuDeviceGet(self, device, index):
        device._obj.value = 10 + index.value
        return self._do("cuDeviceGet")

    def cuDeviceGetUuid_v2(self, found, device):
        found.raw = self.uuids[device.value - 10]
        return self._do("cuDeviceGetUuid_v2")


HOLLOW = bytes.fromhex("8f2c005b00000000d1a5001122334455")  # bytes of 0, where a string ends


def test_the_uuid_is_that_of_nvidia_smi_whatever_its_bytes(monkeypatch):
    driver = FakeDriver([bytes(16), HOLLOW])
    monkeypatch.setattr(identity.ctypes, "CDLL", lambda name: driver)
    assert identity.uuid_of(1, HOLLOW[:2]) == "GPU-8f2c005b-0000-0000-d1a5-001122334455"
    assert driver.log == ["cuInit", "cuDeviceGet", "cuDeviceGetUuid_v2"]


@pytest.mark.parametrize("fails", ["cuInit", "cuDeviceGet", "cuDeviceGetUuid_v2"])
def test_a_driver_that_does_not_tell_the_uuid_leaves_what_cupy_knows(fails, monkeypatch):
    driver = FakeDriver([bytes(16), HOLLOW], fails)
    monkeypatch.setattr(identity.ctypes, "CDLL", lambda name: driver)
    assert identity.uuid_of(1, HOLLOW[:2]) == "GPU-8f2c0000-0000-0000-0000-000000000000"
    assert driver.log[-1] == fails


def test_an_old_driver_has_no_such_function(monkeypatch):
    monkeypatch.setattr(identity.ctypes, "CDLL", lambda name: object())
    assert identity.uuid_of(0, bytes(range(1, 17)) + b"next") == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


def test_memory_goes_to_and_fro(runtime):
    stream, host, back = runtime.stream(), np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    x, y = runtime.empty((2, 3), "float32"), runtime.whole(24)
    runtime.upload(host, x, stream)
    runtime.copy(x, y, stream)
    runtime.download(y, back, stream)
    assert back.tolist() == host.tolist()
    runtime.clear(x, stream)
    assert runtime.view(x, "int64").host().tolist() == [0, 0, 0]
    assert runtime.address(x) == x.data.ptr and runtime.memory() == ((1 << 20) - 48, 1 << 20)
    with pytest.raises(DeviceError, match=texts.COPY_SIZES.pattern(given=24, nbytes=8)):
        runtime.upload(host, runtime.empty(2, "float32"), stream)
    with pytest.raises(DeviceError, match=texts.HOST_ARRAY.pattern(kind="ndarray")):
        runtime.upload(host[::2], x, stream)


def test_an_unpinned_download_waits_and_a_pinned_one_does_not(runtime, cupy):
    stream, x = runtime.stream(), runtime.empty(4, "uint8")
    runtime.download(x, runtime.pinned(8)[2:6], stream)
    assert "synchronize" not in cupy.log
    runtime.download(x, np.empty(4, np.uint8), stream)
    assert cupy.log[-1] == "synchronize"


def test_a_kernel_is_launched_on_the_stream_it_was_given(runtime, cupy):
    stream, x = runtime.stream(), runtime.empty(4, "float32")
    kernel = runtime.compile(SOURCE, "twice.cu", ("-DREAL=float",))["twice"]
    assert cupy.options == ("-std=c++17", "-I/headers", "-DREAL=float")
    kernel.launch((2,), (32,), stream, [x, None, np.int32(4)], 0)
    name, blocks, threads, arguments, shared_bytes, used = cupy.log[-1]
    assert (name, blocks, threads, shared_bytes, used) == ("twice", (2,), (32,), 0, stream.stream)
    assert arguments[0] is x and (arguments[1], arguments[1].dtype) == (0, np.uint64)
    assert (kernel.registers, kernel.shared_bytes, kernel._raw.max_dynamic_shared_size_bytes) == (32, 128, None)
    kernel.launch((2,), (32,), stream, [x, x, np.int32(4)], 100_000)
    assert kernel._raw.max_dynamic_shared_size_bytes == 100_000


def test_sources_compiled_and_taken_from_the_disk(runtime, cupy, tmp_path):
    runtime.compile(SOURCE, "twice.cu", ())
    assert runtime.modules == (0, 1)
    build = cupy.RawModule

    def compiling(**given):
        (tmp_path / "a.cubin").write_text("")
        return build(**given)

    cupy.RawModule = compiling
    runtime.compile(SOURCE, "twice.cu", ())
    assert runtime.modules == (1, 1)


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("orders", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("given, out", [("float32", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_a_product_is_that_of_the_rows(runtime, cupy, given, out, orders, accumulate, precise):
    random, stream = np.random.default_rng(3), runtime.stream()
    a, b = random.integers(-4, 5, (3, 5)).astype(given), random.integers(-4, 5, (5, 4)).astype(given)
    c = random.integers(-4, 5, (3, 4)).astype(out)
    wanted = a.astype(float) @ b + (c if accumulate else 0)
    left, right = (wide_matrix(runtime, stream, *each) for each in zip((a, b), orders, strict=True))
    target = wide_matrix(runtime, stream, c, False)
    runtime.product(left, right, target, accumulate, precise, stream)
    rows = target.array.host()[target.start :].reshape(3, -1)[:, :4]
    assert rows.tolist() == wanted.tolist()
    kind = "float64" if given == "float64" else "float32" if precise or given == "float16" else "tf32"
    assert ("gemm", kind) in cupy.log


def test_products_that_are_none(runtime):
    x, y = runtime.empty(6, "float32"), runtime.empty(6, "float64")
    with pytest.raises(DeviceError, match=texts.PRODUCT.pattern(a="2 × 3", b="2 × 3", c="2 × 2")):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 2, 3, 3), Matrix(x, 2, 2, 2), False, True, runtime.stream())
    with pytest.raises(DeviceError, match=texts.PRODUCT.pattern(a="float32", b="float32", c="float64")):
        runtime.product(Matrix(x, 2, 3, 3), Matrix(x, 3, 2, 2), Matrix(y, 2, 2, 2), False, True, runtime.stream())


def test_what_is_recorded_is_done_when_the_graph_is_launched(runtime):
    stream, x, y = runtime.stream(), runtime.empty(4, "float32"), runtime.empty(4, "float32")
    pinned = runtime.pinned(16).view(np.float32)
    pinned[:] = 3
    runtime.clear(y, stream)
    with runtime.record(stream) as graphs:
        runtime.upload(pinned, x, stream)
        runtime.copy(x, y, stream)
    assert y.host().tolist() == [0] * 4
    graphs[0].launch(stream)
    assert y.host().tolist() == [3] * 4
    assert [kept is x or kept is y or kept is pinned for kept in graphs[0]._kept] == [True] * 4


def recorded(action):
    return texts.WHILE_RECORDING.pattern(action=action)


def failed(doing, error):
    return texts.FAILED.pattern(doing=doing, index=0, error=error)


def test_what_cannot_be_recorded(runtime, cupy):
    stream, other, x = runtime.stream(), runtime.stream(), runtime.empty(4, "float32")
    host, matrix = np.zeros(4, np.float32), Matrix(x, 2, 2, 2)
    event = stream.record()
    refused = {
        "an array was allocated": lambda: runtime.empty(4, "uint8"),
        "pinned memory was allocated": lambda: runtime.pinned(4),
        "memory that is not pinned was copied": lambda: runtime.upload(host, x, stream),
        "a stream was waited for": other.synchronize,
        "an event was waited for": event.wait,
        "a product was asked for": lambda: runtime.product(matrix, matrix, matrix, False, True, stream),
        "twice.cu was compiled": lambda: runtime.compile(SOURCE, "twice.cu", ()),
        "another recording was begun": lambda: runtime.record(other).__enter__(),
    }
    for action, run in refused.items():
        with pytest.raises(DeviceError, match=recorded(action)), runtime.record(stream):
            run()
        assert cupy.log[-1] == "end"
    runtime.empty(4, "uint8")


def test_a_graph_is_not_launched_within_a_recording(runtime):
    stream = runtime.stream()
    with runtime.record(stream) as graphs:
        pass
    with pytest.raises(DeviceError, match=recorded("a graph was launched")), runtime.record(stream):
        graphs[0].launch(stream)


def test_events(runtime):
    stream, other = runtime.stream(), runtime.stream()
    first, second = stream.record(timed=True), stream.record(timed=True)
    assert (first.event.disable_timing, stream.record().event.disable_timing) == (False, True)
    other.after(first)
    assert not second.done()
    second.wait()
    assert second.done() and second.seconds_since(first) == 0.25


def test_an_event_behind_a_fault_is_not_awaited_for_ever(runtime):
    event = runtime.stream().record()
    event.event.ptr[0] = 700  # cudaErrorIllegalAddress
    with pytest.raises(DeviceError, match=failed("asking for an event", "cudaError 700")):
        event.done()


def test_another_thread_allocates_while_this_one_records(runtime):
    made = []
    with runtime.record(runtime.stream()):
        other = threading.Thread(target=lambda: made.append(runtime.empty(3, "float32")))
        other.start()
        other.join()
    assert made[0].size == 3


def test_memory_of_another_process(runtime, cupy):
    x = runtime.whole(100)
    name = runtime.share(x)
    with pytest.raises(DeviceError, match=texts.NOT_WHOLE.pattern()):
        runtime.share(runtime.empty(100, "uint8"))
    there = runtime.open(name, 100)
    assert (len(name), there.data.ptr, there.size) == (64, x.data.ptr, 100)
    with pytest.raises(DeviceError, match=texts.OPEN_ALREADY.pattern()):
        runtime.open(name, 100)
    runtime.close(there)
    assert cupy.log[-1] == "close"
    with pytest.raises(DeviceError, match=texts.NOT_OPEN.pattern()):
        runtime.close(there)


def test_out_of_memory_says_how_much_is_free(runtime, cupy):
    too_large = texts.ARRAY_TOO_LARGE.pattern(index=0, asked="5.00 GiB", nbytes=5_368_709_120, left="0.00 GiB")
    for ask in (lambda: runtime.empty((1 << 28, 5), "float32"), lambda: runtime.whole(5 << 30)):
        with pytest.raises(DeviceError, match=too_large):
            ask()
        assert cupy.log.count("free blocks") == 1
        cupy.log.clear()
    cupy.faults["allocate"] = fake_cupy.OutOfMemoryError("Out of memory allocating 8 bytes")
    assert runtime.empty(2, "float32").size == 2  # once what the pool kept is given back
    cupy.faults["allocate"] = fake_cupy.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")
    with pytest.raises(DeviceError, match=failed("an allocation", "cudaErrorIllegalAddress")):
        runtime.empty(2, "float32")


@pytest.mark.parametrize(
    "call, error, words",
    [
        (
            "synchronize",
            fake_cupy.CUDARuntimeError("cudaErrorAssert: x"),
            failed("the work of a stream", "cudaErrorAssert: x"),
        ),
        (
            "compile",
            fake_cupy.CompileException("a.cu(1): error"),
            texts.NOT_COMPILED.pattern(doing="the compilation of a source", error="a.cu(1): error"),
        ),
        (
            "compile",
            ImportError("no libnvrtc\nmore"),
            texts.NO_LIBRARY.pattern(doing="the compilation of a source", error="no libnvrtc") + "$",
        ),
        (
            "memcpy",
            fake_cupy.CUDARuntimeError("cudaErrorMemoryAllocation: x"),
            texts.OUT_OF_MEMORY.pattern(index=0, doing="a copy", error="cudaErrorMemoryAllocation: x"),
        ),
        ("begin", fake_cupy.CUDARuntimeError("cudaErrorX: x"), failed("the begin of a recording", "cudaErrorX: x")),
    ],
)
def test_errors_of_cuda_are_told(runtime, cupy, call, error, words):
    stream, x = runtime.stream(), runtime.empty(4, "uint8")
    cupy.faults[call] = error
    with pytest.raises(DeviceError, match=words):
        runtime.copy(x, x, stream)
        runtime.compile(SOURCE, "twice.cu", ())
        stream.synchronize()
        with runtime.record(stream):
            pass


def test_a_defect_is_no_fault_of_the_device(runtime, cupy):
    cupy.faults["synchronize"] = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        runtime.stream().synchronize()


OLDER = texts.OLDER_CUPY(built=13, install=texts.INSTALL(major=12))
UNUSABLE = {
    "no driver": (FakeCupy(driver=0), 0, texts.NO_DRIVER()),
    "old driver": (FakeCupy(driver=12040), 0, texts.OLD_DRIVER(built=13, driver="12.4", what_to_do=OLDER)),
    "very old driver": (
        FakeCupy(driver=11080), 0, texts.OLD_DRIVER(built=13, driver="11.8", what_to_do=texts.NEWER_DRIVER),
    ),
    "no device": (FakeCupy(count=0), 0, texts.NO_GPU(visible=texts.VISIBLE(devices=""))),
    "no such device": (
        FakeCupy(count=2), 2,
        texts.NOT_VISIBLE(index=2, seen=texts.SEVERAL_ARE(last=1), visible=texts.VISIBLE(devices="")),
    ),
    "only one": (
        FakeCupy(), 1, texts.NOT_VISIBLE(index=1, seen=texts.ONE_IS, visible=texts.VISIBLE(devices="")),
    ),
    "old device": (
        FakeCupy(capability=(7, 5)), 0, texts.OLD_DEVICE(index=0, name="Fake", capability="7.5", oldest="8.0"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("cupy, index, words", UNUSABLE.values(), ids=UNUSABLE)
def test_why_a_device_cannot_be_used(cupy, index, words, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError) as raised:
        check_usable(cupy, index)
    assert str(raised.value) == words


FAULTS = {
    "none": (
        "count", "cudaErrorNoDevice: no CUDA-capable device is detected", texts.NO_GPU(visible=""),
    ),
    "broken": ("count", "cudaErrorUnknown: unknown", texts.DRIVER_FAILS(error="cudaErrorUnknown: unknown")),
    "busy": (
        "enter", "cudaErrorDevicesUnavailable: busy", texts.BUSY(index=0, error="cudaErrorDevicesUnavailable: busy"),
    ),
    "full": (
        "enter",
        "cudaErrorMemoryAllocation: out of memory",
        texts.OUT_OF_MEMORY(index=0, doing="the first use", error="cudaErrorMemoryAllocation: out of memory"),
    ),
    "odd": (
        "enter", "cudaErrorOdd: odd", texts.FAILED(doing="the first use", index=0, error="cudaErrorOdd: odd"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("call, text, words", FAULTS.values(), ids=FAULTS)
def test_what_the_driver_says_of_a_device(cupy, call, text, words, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cupy.faults[call] = fake_cupy.CUDARuntimeError(text)
    with pytest.raises(DeviceError) as raised:
        check_usable(cupy, 0)
    assert str(raised.value) == words


IMPORTS = {
    "not installed": (
        ModuleNotFoundError("x", name="cupy"),
        texts.NO_CUPY(newer=texts.INSTALL(major=13), older=texts.INSTALL(major=12)),
    ),
    "something it needs": (
        ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock"),
        texts.CUPY_BROKEN(error="No module named 'fastrlock'"),
    ),
    "broken": (ImportError("libcudart.so.13"), texts.CUPY_BROKEN(error="libcudart.so.13")),
}


@pytest.mark.parametrize("error, words", IMPORTS.values(), ids=IMPORTS)
def test_cupy_that_cannot_be_imported(error, words, monkeypatch):
    def refuse(name, *rest):
        raise error

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DeviceError) as raised:
        checks.import_cupy()
    assert str(raised.value) == words


def test_nothing_of_cuda_is_imported_before_a_device_is_asked_for():
    program = (
        "import sys, numpy; import ringtrain.ops.cuda, ringtrain.ops.cuda.cupy_runtime\n"
        "from ringtrain.ops.catalogue import make_ops\n"
        "ops = make_ops('cpu'); x = ops.zeros((3,)); ops.add(x, x, x)\n"
        "loaded = {name.split('.')[0] for name in sys.modules} & {'cupy', 'cupy_backends', 'cuda', 'cudnn'}\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
