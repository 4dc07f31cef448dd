"""Products of cuBLAS through ctypes: every argument beside the library's header, every order beside NumPy."""

import ctypes
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda import cublas
from ringtrain.ops.cuda.cublas import PARAMETERS, Cublas
from ringtrain.ops.cuda.runtime import Matrix
from tests.fakes.fake_cublas import WORDS, FakeCublas
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import assert_product
from tests.says import says

STREAM = 4711
ORDERS = list(itertools.product((False, True), repeat=2))
PAIRS = [("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
PAIRS += [("float32", "float32"), ("float64", "float64")]


@pytest.fixture
def library(monkeypatch):
    library = FakeCublas()
    monkeypatch.setattr(cublas, "_open", lambda: library)
    return library


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("factor, out", PAIRS)
def test_every_order_type_and_stride(library, factor, out, orders):
    device = SimpleNamespace(runtime=(runtime := HostRuntime()), stream=runtime.stream())
    assert_product(device, Cublas(runtime, STREAM).multiply, factor, out, orders)


@pytest.mark.parametrize("precise, wanted", [(True, 1 + 2.0**-12), (False, 1.0)])
def test_tf32_is_for_float32_that_may_be_short(library, precise, wanted):
    assert multiplied(1 + 2.0**-12, precise) == wanted


def multiplied(factor, precise=True):
    """The factor by 1."""
    runtime = HostRuntime()
    a, b, c = (np.full(1, x, np.float32) for x in (factor, 1, 0))
    Cublas(runtime, STREAM).multiply(*(Matrix(runtime.adopt(x), 1, 1, 1) for x in (a, b, c)), False, precise)
    return c[0]


def test_a_status_that_is_no_success_is_told_with_its_call(library):
    library.failing = {"cublasGemmEx": 13}
    with pytest.raises(DeviceError, match=says("cublasGemmEx", 13, WORDS.decode())):
        multiplied(1)


# ── where the library is ──────────────────────────────────────────────────────────────────────────────────────────
def not_found(name):
    raise RuntimeError(f"lib{name}.so.13 is nowhere")


@pytest.mark.parametrize(
    "find, paths, opened",
    [
        (lambda name: SimpleNamespace(abs_path=f"/extras/lib{name}.so.13"), ["/extras/libcublas.so.13"], 0),
        (not_found, ["libcublas.so.13"], 0),
        (None, ["libcublas.so.12"], 1),
    ],
    ids=["in the extras", "not in the extras", "no pathfinder"],
)
def test_the_library_is_looked_for_in_the_extras_then_by_the_loader(monkeypatch, find, paths, opened):
    tried, library = [], FakeCublas()

    def load(path):
        tried.append(path)
        if path not in paths:
            raise OSError(f"{path}: cannot open shared object file")
        return library

    pathfinder = ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = find
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder if find else None)
    monkeypatch.setattr(cublas.ctypes, "CDLL", load)
    assert cublas.load_cublas() is library and tried[opened:] == paths
    assert library.cublasGetStatusString(3) == WORDS


def test_a_library_that_is_not_there_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(cublas, "SONAMES", ("libnone.so.13", "libnone.so.12"))
    with pytest.raises(DeviceError, match=says("a matrix product of cuBLAS", "libnone.so.13, libnone.so.12")):
        Cublas(HostRuntime(), STREAM)


# ── the real one, which needs no device for this ──────────────────────────────────────────────────────────────────
def test_the_library_has_every_function():
    try:
        library = cublas.load_cublas()
    except DeviceError as error:
        pytest.skip(str(error))
    assert b"failed to launch" in library.cublasGetStatusString(13)


def test_numbers_and_types_are_those_of_the_header():
    """Enums and addresses are of one size each; the order of arguments is the names'."""
    folder = header_folder()
    api, types = ((folder / name).read_text() for name in ("cublas_api.h", "library_types.h"))
    named = {name: value for name, value in vars(cublas).items() if name.startswith(("CUBLAS_", "CUDA_R_"))}
    assert len(named) == 11
    for name, value in named.items():
        (number,) = re.findall(rf"\b{name}\s*=\s*(-?\d+)", api + types)
        assert int(number) == value, name
    for name, parameters in PARAMETERS.items():
        declared = re.search(rf"cublasStatus_t CUBLASWINAPI {name}\((.*?)\);", api, re.DOTALL)[1].split(",")
        assert tuple(map(kind_of, declared)) == parameters, name
    names = " ".join(re.search(r"\w+$", each)[0] for each in declared)
    assert names == "handle transa transb m n k alpha A Atype lda B Btype ldb beta C Ctype ldc computeType algo"


def header_folder() -> Path:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="the extras cuda12 and cuda13 are not installed")
    folder = pathfinder.find_nvidia_header_directory("cublas")
    if folder is None:
        pytest.skip("the header files of cuBLAS are not installed")
    return Path(folder)


def kind_of(parameter: str):
    words = parameter.replace("const", "").split()
    if words[0].endswith("*") or words[0] in ("cublasHandle_t", "cudaStream_t", "void*"):
        return ctypes.POINTER(ctypes.c_void_p) if words[0] == "cublasHandle_t*" else ctypes.c_void_p
    return ctypes.c_size_t if words[0] == "size_t" else ctypes.c_int
