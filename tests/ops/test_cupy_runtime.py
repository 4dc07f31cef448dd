"""The rules of CupyRuntime around CuPy: errors, recordings, counts. What CuPy computes is for tests on a device."""

import builtins
import sys
import threading
from types import SimpleNamespace

import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda import checks, cupy_compiler, cupy_driver
from ringtrain.ops.cuda.boxes import Boxes
from ringtrain.ops.cuda.checks import check_usable
from ringtrain.ops.cuda.cupy_runtime import CupyRuntime
from tests.fakes import fake_cupy
from tests.fakes.fake_cupy import FakeCupy
from tests.says import says

SOURCE = 'extern "C" __global__ void twice(const float *x, float *y, int n) {}'


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def runtime(cupy, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("ringtrain.ops.cuda.cupy_compiler._headers", lambda cupy: ((), ""))
    monkeypatch.setattr(cupy_driver, "DRIVER", "libnone.so")
    return CupyRuntime(cupy, 0)


HOLLOW = bytes.fromhex("8f2c005b00000000d1a5001122334455")  # bytes of 0, where a string ends


class FakeDriver:
    """libcuda, of devices whose second one has the UUID HOLLOW; ``fails``: the function that returns an error."""

    def __init__(self, fails=""):
        self.log, self._fails = [], fails

    def __getattr__(self, name):
        def call(*arguments):
            self.log.append(name)
            if name == "cuDeviceGet":
                arguments[0]._obj.value = 10 + arguments[1].value
            if name == "cuDeviceGetUuid_v2":
                arguments[0].raw = {11: HOLLOW}[arguments[1].value]
            return 999 if name == self._fails else 0

        return call


UUID_CALLS = ["cuInit", "cuDeviceGet", "cuDeviceGetUuid_v2"]


def test_the_uuid_is_that_of_nvidia_smi_whatever_its_bytes(monkeypatch):
    """A driver that does not answer, or is older than the function, leaves what CuPy knows."""
    for fails in ("", *UUID_CALLS):
        driver = FakeDriver(fails)
        monkeypatch.setattr(cupy_driver.ctypes, "CDLL", lambda name, driver=driver: driver)
        wanted = "8f2c0000-0000-0000-0000-000000000000" if fails else "8f2c005b-0000-0000-d1a5-001122334455"
        assert cupy_driver.uuid_of(1, HOLLOW[:2]) == f"GPU-{wanted}"
        assert driver.log[-1] == (fails or UUID_CALLS[-1])
    monkeypatch.setattr(cupy_driver.ctypes, "CDLL", lambda name: object())
    assert cupy_driver.uuid_of(0, bytes(range(1, 17)) + b"next") == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


# ── compilation ──────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("capability", "wanted"), [((8, 0), "sm_80"), ((8, 6), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_100")]
)
def test_the_architecture_is_the_newest_that_the_compiler_knows_of(cupy, capability, wanted):
    assert cupy_compiler.architecture_of(cupy, capability) == wanted


def test_the_name_of_a_compiled_source_has_no_path_of_the_machine(cupy, tmp_path, monkeypatch):
    """What was compiled elsewhere is loaded here; other headers, or another compiler, have names of their own."""
    names = []
    for headers, version in (("/a", "1"), ("/b/c", "1"), ("/a", "2")):
        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / f"{len(names)}"))
        answer = (f"-I{headers}",), version
        monkeypatch.setattr(cupy_compiler, "_headers", lambda _, answer=answer: answer)
        path, is_new = cupy_compiler.compiled_file(cupy, SOURCE, "twice.cu", (), "sm_90")
        assert is_new and cupy.log[-3][0] == f"-I{headers}"
        names.append(path.name)
    cupy.cuda.nvrtc.getVersion = lambda: (13, 1)
    names.append(cupy_compiler.compiled_file(cupy, SOURCE, "twice.cu", (), "sm_90")[0].name)
    assert names[0] == names[1] and len(set(names)) == 3


def test_a_digest_of_the_headers_that_are_used(cupy, tmp_path, monkeypatch):
    pathfinder = SimpleNamespace(find_nvidia_header_directory=lambda name: None)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=pathfinder))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    headers = cupy_compiler._headers.__wrapped__
    cupy.cuda.get_cuda_path = lambda: None
    assert headers(cupy)[0] == ()
    folder, digests = tmp_path / "include", []
    cupy.cuda.get_cuda_path = lambda: str(tmp_path)
    folder.mkdir()
    for name in ("cuda_fp16.h", "another.h"):
        (folder / name).write_text(name)
        assert headers(cupy)[0] == (f"-I{folder}",)
        digests.append(headers(cupy)[1])
    (folder / "cuda_fp16.h").write_text("of another version")
    assert digests[0] == digests[1] != headers(cupy)[1]


def test_what_does_not_compile_for_an_architecture_is_told_and_leaves_no_file(runtime, cupy, tmp_path):
    cupy.cuda.nvrtc.fails = True
    with pytest.raises(DeviceError, match=says("the compilation of a source", "a.cu(1): error")):
        runtime.compile(SOURCE, "twice.cu", (), "sm_90a")
    assert list(tmp_path.iterdir()) == [] and cupy.log[-1] == "destroy"


# ── maps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_map_that_the_driver_refuses_is_told(runtime, monkeypatch):
    refusing = SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 1)
    monkeypatch.setattr(cupy_driver.ctypes, "CDLL", lambda name: refusing)
    boxes = Boxes((64, 8, 2), (64, 512), (64, 8, 1))
    with pytest.raises(DeviceError, match=says(boxes, 1)):
        runtime.tensor_map(runtime.empty(64, "float16"), boxes)


# ── recordings, memory, errors ───────────────────────────────────────────────────────────────────────────────────
def test_recordings_are_ended_and_keep_their_arrays(runtime, cupy):
    """After work that cannot be recorded, too; another thread does as it likes meanwhile."""
    stream, x, arrays = runtime.stream(), runtime.empty(4, "float32"), []
    with runtime.record(stream) as graphs:
        runtime.copy(x, x, stream)
        other = threading.Thread(target=lambda: arrays.append(runtime.empty(3, "float32")))
        other.start()
        other.join()
    assert graphs[0]._kept[0] is x and arrays[0].size == 3
    refused = {
        "an array was allocated": lambda: runtime.whole(4),
        "an event was waited for": stream.record().wait,
        "another recording was begun": lambda: runtime.record(stream).__enter__(),
        "a graph was launched": lambda: graphs[0].launch(stream),
    }
    for action, run in refused.items():
        with pytest.raises(DeviceError, match=says(action)), runtime.record(stream):
            run()
        assert cupy.log[-1] == "end"
    runtime.empty(4, "uint8")


def test_an_event_behind_a_fault_is_not_awaited_for_ever(runtime):
    event = runtime.stream().record()
    event.event.ptr[0] = 700  # cudaErrorIllegalAddress
    with pytest.raises(DeviceError, match=says("asking for an event", 0, "cudaError 700")):
        event.done()


def test_memory_of_another_process(runtime, cupy):
    x = runtime.whole(100)
    name = runtime.share(x)
    with pytest.raises(DeviceError, match=says("Runtime", "shared")):
        runtime.share(runtime.empty(100, "uint8"))
    opened = runtime.open(name, 100)
    assert (opened.data.ptr, opened.size) == (x.data.ptr, 100)
    with pytest.raises(DeviceError, match=says("open", "already")):
        runtime.open(name, 100)
    runtime.close(opened)
    assert cupy.log[-1] == "close"
    with pytest.raises(DeviceError, match=says("close", "open")):
        runtime.close(opened)


def test_out_of_memory_says_how_much_is_free(runtime, cupy):
    too_large = says("--precision", 0, "5.00 GiB", "5,368,709,120", "0.00 GiB")
    for ask in (lambda: runtime.empty((1 << 28, 5), "float32"), lambda: runtime.whole(5 << 30)):
        with pytest.raises(DeviceError, match=too_large):
            ask()
        assert cupy.log.count("free blocks") == 1
        cupy.log.clear()
    cupy.faults["allocate"] = fake_cupy.OutOfMemoryError("Out of memory allocating 8 bytes")
    assert runtime.empty(2, "float32").size == 2  # once what the pool kept is given back
    cupy.faults["allocate"] = fake_cupy.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")
    with pytest.raises(DeviceError, match=says("an allocation", 0, "cudaErrorIllegalAddress")):
        runtime.empty(2, "float32")


ERRORS = [
    ("synchronize", fake_cupy.CUDARuntimeError("cudaErrorAssert: x"), ("the work of a stream", 0)),
    ("compile", fake_cupy.CompileException("a.cu(1): error"), ("the compilation of a source",)),
    ("compile", ImportError("no libnvrtc\nmore"), ("the compilation of a source", "no libnvrtc")),
    ("memcpy", fake_cupy.CUDARuntimeError("cudaErrorMemoryAllocation: x"), ("a copy", 0)),
    ("begin", fake_cupy.CUDARuntimeError("cudaErrorX: x"), ("the begin of a recording", 0)),
]


@pytest.mark.parametrize("call, error, words", ERRORS)
def test_errors_of_cuda_are_told(runtime, cupy, call, error, words):
    stream, x = runtime.stream(), runtime.empty(4, "uint8")
    cupy.faults[call] = error
    with pytest.raises(DeviceError, match=says(*words, str(error).splitlines()[0])):
        runtime.copy(x, x, stream)
        runtime.compile(SOURCE, "twice.cu", ())
        stream.synchronize()
        with runtime.record(stream):
            pass


def test_a_defect_is_no_fault_of_the_device(runtime, cupy):
    cupy.faults["synchronize"] = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        runtime.stream().synchronize()


def faulty(call, text):
    cupy = FakeCupy()
    cupy.faults[call] = fake_cupy.CUDARuntimeError(text)
    return cupy


OLDER, FULL = says(13, 12, "pip", "cuda"), "cudaErrorMemoryAllocation: full"
UNUSABLE = {
    "no driver": (FakeCupy(driver=0), 0, says("--device", "--gpus")),
    "old driver": (FakeCupy(driver=12040), 0, says("--device", 13, "12.4", OLDER)),
    "very old driver": (FakeCupy(driver=11080), 0, says("--device", 13, "11.8", "newer", "driver")),
    "no device": (FakeCupy(count=0), 0, says("--device")),
    "no such device": (FakeCupy(count=2), 2, says(2, 1, "devices", "are")),
    "only one": (FakeCupy(), 1, says(1, "device", "is")),
    "old device": (FakeCupy(capability=(7, 5)), 0, says(0, "Fake", "7.5", "8.0")),
    "none": (faulty("count", "cudaErrorNoDevice: no CUDA-capable device is detected"), 0, says("--device")),
    "broken": (faulty("count", "cudaErrorUnknown: x"), 0, says("--device", "cudaErrorUnknown: x")),
    "busy": (faulty("enter", "cudaErrorDevicesUnavailable: x"), 0, says(0, "cudaErrorDevicesUnavailable: x")),
    "full": (faulty("enter", FULL), 0, says(0, "the first use", FULL)),
    "odd": (faulty("enter", "cudaErrorOdd: odd"), 0, says("the first use", 0, "cudaErrorOdd: odd")),
}


@pytest.mark.parametrize("cupy, index, words", UNUSABLE.values(), ids=UNUSABLE)
def test_why_a_device_cannot_be_used(cupy, index, words, monkeypatch):
    if cupy.faults:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match=words):
        check_usable(cupy, index)


IMPORTS = {
    "not installed": (ModuleNotFoundError("x", name="cupy"), ("pip install 'ringtrain[cuda13]'", "cuda12")),
    "something it needs": (ModuleNotFoundError("no 'fastrlock'", name="fastrlock"), ("no 'fastrlock'",)),
    "broken": (ImportError("libcudart.so.13"), ("libcudart.so.13",)),
}


@pytest.mark.parametrize("error, words", IMPORTS.values(), ids=IMPORTS)
def test_cupy_that_cannot_be_imported(error, words, monkeypatch):
    def refuse(name, *rest):
        raise error

    with monkeypatch.context() as patched, pytest.raises(DeviceError, match=says("--device", *words)):
        patched.setattr(builtins, "__import__", refuse)
        checks.import_cupy()
