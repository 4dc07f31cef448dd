"""What tests of the operations on a GPU share: a device, and which operations are to be tested on it.

The device is the host's, or a real one where RINGTRAIN_TEST_DEVICE is ``cuda``. Tests that use it have the marker
``device``.
"""

import functools
import itertools
import os

import numpy as np
import pytest

from ringtrain.ops.base import Ops
from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.cuda import PARTS as MODULES
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import CudaConvolution
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.runtime import Matrix
from ringtrain.ops.normalised import Normalised
from ringtrain.ops.precision import active_dtype
from ringtrain.ops.reference import ReferenceOps
from tests.fakes import host_kernels
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cases import Call, calls, perform

PARTS = (*MODULES, CudaConvolution)
REAL = os.environ.get("RINGTRAIN_TEST_DEVICE") == "cuda"
needs_compiler = pytest.mark.skipif(
    not REAL and host_kernels.compiler() is None, reason="g++ is not installed: no device to fake"
)


def on_device(test):
    """A test of the device; the host's wants a compiler."""
    return pytest.mark.device(needs_compiler(test))


asked = []  # an entry for each runtime that a test asked for: conftest.py holds the marker ``device`` to it


def device_runtime(hasty=False):
    """``hasty``: of the host's device; a real one is as hasty as it is."""
    asked.append(hasty)
    return _real_runtime() if REAL else HostRuntime(hasty)


@functools.cache
def _real_runtime():
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    return make_runtime(0)


def cuda_ops(dtype="float32", precision="float32", runtime=None, choice=None):
    """``choice``: among ways to do the same; the first, where none is given: trials take their time here."""
    runtime = runtime or device_runtime()
    active = active_dtype(precision, dtype)
    device = Device(runtime, dtype, active, precision != "tf32", choice=choice or Choice(fixed=True))
    return CudaOps(runtime, dtype, precision, device)


def put(device, values):
    array = device.runtime.empty(values.shape, values.dtype)
    device.runtime.upload(np.ascontiguousarray(values), array, device.stream)
    return array


def get(device, array):
    """The numbers of an array, in float64."""
    host = np.empty(array.shape, array.dtype)
    device.runtime.download(array, host, device.stream)
    return host.astype(np.float64)


def assert_product(device, multiply, factor, out, orders=(False, False)):
    """Of 3 × 5 by 5 × 4 by ``multiply``, each matrix a part of a wider one, all of different strides, two elements
    after the start of its array. What lies around the result stays; one that is not added to is not read."""
    random = np.random.default_rng(3)
    shapes = zip(((3, 5), (5, 4), (3, 4)), (factor, factor, out), strict=True)
    a, b, c = (random.integers(-4, 5, shape).astype(dtype) for shape, dtype in shapes)
    for accumulate, precise in itertools.product((False, True), repeat=2):
        before = c if accumulate else np.full_like(c, np.nan)
        values = zip((a, b, before), (*orders, False), (7, 9, 6), strict=True)
        matrices = [_wide(device, *each) for each in values]
        device.stream.synchronize()
        multiply(*matrices, accumulate, precise)
        result = get(device, matrices[2].array)
        rows = result[2:].reshape(3, 6)
        wanted = a.astype(float) @ b.astype(float) + (c.astype(float) if accumulate else 0)
        assert rows[:, :4].tolist() == wanted.tolist(), (accumulate, precise)
        assert (rows[:, 4:] == 100).all() and (result[:2] == 100).all()


def _wide(device, values, transposed, stride):
    stored = values.T if transposed else values
    memory = np.full(2 + len(stored) * stride, 100, values.dtype)
    memory[2:].reshape(-1, stride)[:, : stored.shape[1]] = stored
    return Matrix(put(device, memory), *values.shape, stride, 2, transposed)


ON_DEVICE = [needs_compiler, pytest.mark.device]
COMPILED = [CpuOps, pytest.param(cuda_ops, marks=ON_DEVICE)]  # what makes operations, of a type
BACKENDS = [*COMPILED, ReferenceOps]


def operations(*parts):
    """The names of the operations that some parts have; of all where none is given."""
    return {name for part in parts or PARTS for name in Ops.__abstractmethods__ & set(vars(part))}


def calls_of(parts, dtype, n):
    return [call for call in calls(dtype, n) if call.operation in operations(*parts)]


# Of the largest element; of 16 bits: one rounding.
TOLERANCE = {"float32": 5e-6, "float64": 1e-13, "float16": 5e-4, "bfloat16": 4e-3}
ACTIVE = ("x_N", "a_N", "y_N", "dx_N", "dy_N")  # how names of activations and their gradients begin
TYPES = [("float32", "float32"), ("float64", "float32"), ("float32", "bfloat16"), ("float32", "float16")]


def agree(ops, call: Call) -> None:
    """The call beside the reference, with activations of any type."""
    call = with_active(call, ops.active)
    got, wanted = perform(ops, call), perform(ReferenceOps(ops.dtype), with_active(call, ops.dtype))
    assert got.keys() == wanted.keys()
    for name in wanted:
        dtype = ops.active if name.startswith(ACTIVE) else ops.dtype
        assert_close(got[name], wanted[name], TOLERANCE[dtype.name], f"{call}: {name}")


def with_active(call: Call, dtype) -> Call:
    """The same call, activations converted."""

    def converted(arrays):
        return {name: _converted(x, dtype) if name.startswith(ACTIVE) else x for name, x in arrays.items()}

    return Call(call.operation, converted(call.inputs), converted(call.outputs), call.rest)


def _converted(x, dtype):
    if isinstance(x, Normalised):
        return x._replace(x=x.x.astype(dtype))
    return x.astype(dtype) if isinstance(x, np.ndarray) else x


def assert_close(got, wanted, tolerance, what):
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    assert (np.isnan(got) == np.isnan(wanted)).all(), what
    if wanted.size:
        error = np.nanmax(np.abs(got - wanted)) / max(1e-30, np.nanmax(np.abs(wanted)))
        assert error <= tolerance, f"{what}: {error}"
