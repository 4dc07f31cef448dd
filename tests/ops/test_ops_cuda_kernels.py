"""Kernels are found by name, and what they are launched with is what their C parameters say."""

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.boxes import TensorMap
from ringtrain.ops.cuda.kernels import SOURCES, Kernels, whole_source
from ringtrain.ops.cuda.signatures import C_TYPES, KernelParameter, convert, parse_signatures
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import device_runtime, needs_compiler, on_device

TYPES = {"REAL": "float", "ACT": "__half"}
SOURCE = """
// extern "C" __global__ void commented(int n) {
extern "C" __global__ void __launch_bounds__(256) one(
    const ACT *__restrict__ x, REAL *y, /* how many */ long long n, unsigned char flag, void* any) {
}
extern "C" __global__ void two() {}
__global__ void not_ours(int n) {}
"""


def test_parameters_are_read_from_the_source():
    signatures = parse_signatures(SOURCE, TYPES)
    assert signatures == {
        "one": (
            KernelParameter("x", "__half", True, True),
            KernelParameter("y", "float", True, False),
            KernelParameter("n", "long long", False, False),
            KernelParameter("flag", "unsigned char", False, False),
            KernelParameter("any", "void", True, False),
        ),
        "two": (),
    }
    assert [str(each) for each in signatures["one"]][:3] == ["const __half *x", "float *y", "long long n"]


@pytest.mark.parametrize("text", ["float4 *x", "float **x", "void n", "int x[]", "std::vector<int> x"])
def test_parameters_that_a_launch_cannot_check(text):
    with pytest.raises(ValueError, match=r"kernel f: parameter '.*'; use a pointer or a number of float, double"):
        parse_signatures(f'extern "C" __global__ void f({text}) {{}}', {})


@pytest.fixture
def arrays():
    runtime = HostRuntime()
    return runtime.empty(4, "float16"), runtime.empty(4, "float32"), runtime.empty(4, "uint8")


def test_arguments_become_what_the_parameters_are(arrays):
    x, y, some = arrays
    got = convert("one", parse_signatures(SOURCE, TYPES)["one"], (x, y, 7, True, some))
    assert got[:2] == [x, y] or (got[0] is x and got[1] is y)
    assert [type(each) for each in got[2:4]] == [np.int64, np.uint8] and got[4] is some
    assert convert("one", parse_signatures(SOURCE, TYPES)["one"], (None, y, 7, 1, None))[0] is None
    number = parse_signatures('extern "C" __global__ void f(float x, double y, unsigned long long n) {}', {})["f"]
    assert [type(each) for each in convert("f", number, (1, 2.5, 2**64 - 1))] == [np.float32, np.float64, np.uint64]


MAPPED = 'extern "C" __global__ void __launch_bounds__(384, 1) f(const __grid_constant__ TensorMap a, int n) {}'


def test_a_map_is_passed_by_value(arrays):
    parameters = parse_signatures(MAPPED, {})["f"]
    assert parameters[0] == KernelParameter("a", "TensorMap", False, True)
    map = TensorMap(None, arrays[0])
    assert convert("f", parameters, (map, 3))[0] is map
    with pytest.raises(TypeError, match="kernel f: const TensorMap a got DeviceArray; it takes a map"):
        convert("f", parameters, (arrays[0], 3))
    with pytest.raises(TypeError, match="kernel f: int n got TensorMap; it takes a number"):
        convert("f", parameters, (map, map))
    with pytest.raises(TypeError, match=r"kernel one: const __half .x got TensorMap; it takes an array"):
        convert("one", parse_signatures(SOURCE, TYPES)["one"], (map, None, 1, 1, None))


WRONG = {
    "count": (lambda x, y, some: (x, y), TypeError, r"got 2 arguments; it takes 5: const __half \*x, float \*y, long"),
    "dtype": (lambda x, y, some: (y, y, 1, 1, some), TypeError, "const __half .x got an array of float32; .* float16"),
    "swapped": (lambda x, y, some: (x, x, 1, 1, some), TypeError, "float .y got an array of float16; it takes float32"),
    "number for array": (lambda x, y, some: (x, 3, 1, 1, some), TypeError, "float .y got int; it takes an array"),
    "host": (lambda x, y, some: (x, np.zeros(4, np.float32), 1, 1, some), TypeError, "got ndarray; it takes an array"),
    "array for number": (
        lambda x, y, some: (x, y, y, 1, some),
        TypeError,
        "long long n got DeviceArray.*takes a number",
    ),
    "fraction": (lambda x, y, some: (x, y, 1.5, 1, some), TypeError, "long long n got 1.5; it takes a whole number"),
    "width": (lambda x, y, some: (x, y, 1, 256, some), OverflowError, "unsigned char flag got 256, outside of 0..255"),
    "sign": (lambda x, y, some: (x, y, 1, -1, some), OverflowError, "unsigned char flag got -1, outside of 0..255"),
}


@pytest.mark.parametrize("make, error, words", WRONG.values(), ids=WRONG)
def test_arguments_that_are_not_what_the_parameters_are(arrays, make, error, words):
    with pytest.raises(error, match=f"kernel one.*{words}"):
        convert("one", parse_signatures(SOURCE, TYPES)["one"], make(*arrays))


def test_every_parameter_of_every_source_can_be_checked():
    for path in SOURCES.iterdir():
        if path.name.endswith(".cu"):
            types = {**TYPES, "T": "float", "FROM": "float", "TO": "float"}
            assert parse_signatures(whole_source(path.name.removesuffix(".cu")), types), path.name


def test_headers_are_put_in_place_once_and_lines_are_told():
    whole = whole_source("elementwise")
    assert whole.startswith('#line 1 "elementwise.cu"\n') and whole.count("#define WARP 32") == 1
    assert '#include "' not in whole and whole.count('#line 1 "common.cuh"') == 1
    lines = (SOURCES / "elementwise.cu").read_text().splitlines()
    after = whole.rpartition("#line ")[2].splitlines()
    assert after[0] == '3 "elementwise.cu"' and after[1:] == lines[2:]


def test_names_that_are_not_there():
    kernels = Kernels(HostRuntime(), "float32", "float32")
    with pytest.raises(LookupError, match=r"source 'elementwis' is not known; did you mean 'elementwise'\?"):
        kernels("elementwis", "add")


@on_device
def test_a_source_is_compiled_once_for_its_types():
    runtime = device_runtime()
    kernels, before = Kernels(runtime, "float32", "float32"), sum(runtime.modules)
    assert kernels("elementwise", "add") is kernels("elementwise", "add")
    kernels("elementwise", "relu")
    assert sum(runtime.modules) - before == 1
    kernels.of("float64")("elementwise", "add")
    assert sum(runtime.modules) - before == 2
    assert kernels.of("float64").of is not None and kernels.of("float32") is kernels
    with pytest.raises(LookupError, match=r"kernel 'ad' is not in elementwise\.cu; did you mean 'add'\?"):
        kernels("elementwise", "ad")


def test_each_type_has_arithmetic_that_is_no_narrower():
    kernels = Kernels(HostRuntime(), "float32", "float32")
    assert [str(kernels.of(name).real) for name in ("float16", "float32", "float64")] == ["float32"] * 2 + ["float64"]
    assert set(C_TYPES) == {"float16", "bfloat16", "float32", "float64"}


@needs_compiler
def test_a_kernel_that_writes_too_much_is_found():
    """On the host: no comparison with the reference would show it."""
    runtime = HostRuntime()
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = runtime.empty((1001,), "float32"), runtime.empty((1000,), "float32")
    add(3, 64, stream, x, x, y, 1001, 0)
    with pytest.raises(DeviceError, match=r"something was written beyond an array of shape \(1000,\), float32"):
        stream.synchronize()
