"""The device of the tests does what a device does, and says no where a device would go wrong without a word."""

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.kernels import Kernels
from tests.fakes import host_kernels
from tests.fakes.host_cuda import HostRuntime

pytestmark = pytest.mark.skipif(host_kernels.compiler() is None, reason="g++ is not installed")


@pytest.fixture
def runtime():
    return HostRuntime()


def ramp(runtime, stream, count):
    x = runtime.empty((count,), "float32")
    runtime.upload(np.arange(count, dtype=np.float32), x, stream)
    return x


def read(runtime, x, stream):
    host = np.empty(x.shape, x.dtype)
    runtime.download(x, host, stream)
    return host


def test_a_kernel_runs_when_it_is_waited_for(runtime):
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = ramp(runtime, stream, 1001), runtime.empty((1001,), "float32")
    add(3, 64, stream, x, x, y, 1001, 0)
    assert np.isnan(y._memory).all()
    assert [name for name, _ in runtime.queued] == ["upload", "add"]
    stream.synchronize()
    assert y._memory.tolist() == [2 * i for i in range(1001)]


def test_what_is_written_out_of_bounds_is_told(runtime):
    add, stream = Kernels(runtime, "float32", "float32")("elementwise", "add"), runtime.stream()
    x, y = ramp(runtime, stream, 1001), runtime.empty((1000,), "float32")
    add(3, 64, stream, x, x, y, 1001, 0)
    with pytest.raises(DeviceError, match=r"something was written beyond an array of shape \(1000,\), float32"):
        stream.synchronize()
