"""Parts of the operations of CUDA, on the device of the tests, beside the reference."""

import numpy as np
import pytest

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.precision import active_dtype
from ringtrain.ops.reference import ReferenceOps
from tests.fakes import host_kernels
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cases import Call, calls, perform

needs_compiler = pytest.mark.skipif(host_kernels.compiler() is None, reason="g++ is not installed")
# Of the largest element; of 16 bits: one rounding.
TOLERANCE = {"float32": 5e-6, "float64": 1e-13, "float16": 5e-4, "bfloat16": 4e-3}
ACTIVE = ("x_N", "y_N", "dx_N", "dy_N")  # how names of activations and their gradients begin
TYPES = [("float32", "float32"), ("float64", "float32"), ("float32", "bfloat16"), ("float32", "float16")]


class Part:
    """A part, with what the cases need of Ops besides."""

    def __init__(self, make, dtype="float32", precision="float32"):
        if precision == "bfloat16":
            pytest.importorskip("ml_dtypes")
        self.runtime = HostRuntime()
        self.device = Device(self.runtime, dtype, active_dtype(precision, dtype))
        self._part = make(self.device)

    def __getattr__(self, operation):
        return getattr(self._part, operation)

    def from_host(self, host):
        x = self.runtime.empty(host.shape, host.dtype)
        self.runtime.upload(np.ascontiguousarray(host), x, self.device.stream)
        return x

    def to_host(self, x):
        host = np.empty(x.shape, x.dtype)
        self.runtime.download(x, host, self.device.stream)
        return host


def compare(part: Part, operations: set, n: int) -> set:
    """Every case of the operations, on n examples, beside the reference; which of them there were."""
    seen = set()
    for call in calls(part.device.real, n):
        if call.operation in operations:
            agree(part, call)
            seen.add(call.operation)
    return seen


def agree(part: Part, call: Call) -> None:
    real, active = part.device.real, part.device.active
    call = with_active(call, active)
    got, wanted = perform(part, call), perform(ReferenceOps(real), with_active(call, real))
    assert got.keys() == wanted.keys()
    for name in wanted:
        tolerance = TOLERANCE[active.name if name.startswith(ACTIVE) else real.name]
        assert_close(got[name], wanted[name], tolerance, f"{call}: {name}")


def with_active(call: Call, dtype) -> Call:
    """The same call, activations converted."""

    def converted(arrays):
        return {name: x.astype(dtype) if is_active(name, x) else x for name, x in arrays.items()}

    return Call(call.operation, converted(call.inputs), converted(call.outputs), call.rest)


def is_active(name, x):
    return isinstance(x, np.ndarray) and name.startswith(ACTIVE)


def assert_close(got, wanted, tolerance, what):
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    assert (np.isnan(got) == np.isnan(wanted)).all(), what
    if wanted.size:
        error = np.nanmax(np.abs(got - wanted)) / max(1e-30, np.nanmax(np.abs(wanted)))
        assert error <= tolerance, f"{what}: {error}"


def replayed(part: Part, run) -> None:
    """Run once, so that all memory is there; then record the same, which refuses an allocation or a wait, and do what
    was recorded."""
    run()
    part.device.stream.synchronize()
    with part.runtime.record(part.device.stream) as recorded:
        run()
    recorded[0].launch(part.device.stream)
    part.device.stream.synchronize()
