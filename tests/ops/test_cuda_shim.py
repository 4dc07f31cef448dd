"""CUDA's device code on the host: what threads tell each other is right, and what a device would get wrong is found."""

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import needs_compiler

pytestmark = needs_compiler

SOURCE = """
extern "C" __global__ void places(int *out) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}
extern "C" __global__ void turned(const int *x, int *y, int wait) {
    __shared__ int kept[256];
    kept[threadIdx.x] = x[threadIdx.x];
    if (wait) __syncthreads();
    y[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void rounds(int *y, int count, int wait) {
    __shared__ int kept;
    for (int i = 0; i < count; i++) {
        if (threadIdx.x == i) kept = i;
        __syncthreads();
        y[i * blockDim.x + threadIdx.x] = kept;
        if (wait) __syncthreads();
    }
}
extern "C" __global__ void dynamic(float *y, int count) {
    extern __shared__ __align__(16) float some[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) some[i] = 2 * i;
    __syncthreads();
    y[threadIdx.x] = some[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void shuffles(const double *x, double *y) {
    int i = threadIdx.x, n = blockDim.x;
    y[i] = __shfl_xor_sync(0xffffffffu, x[i], 5);
    y[n + i] = __shfl_down_sync(0xffffffffu, x[i], 3);
    y[2 * n + i] = __shfl_up_sync(0xffffffffu, x[i], 3, 8);
    y[3 * n + i] = __shfl_sync(0xffffffffu, x[i], 2, 16);
    if (i % 32 < 16) y[4 * n + i] = __shfl_xor_sync(0xffffu, x[i], 8);
    else y[4 * n + i] = __shfl_xor_sync(0xffff0000u, x[i], 4);
}
extern "C" __global__ void votes(int *y) {
    int i = threadIdx.x;
    y[i] = (int)__ballot_sync(0xffffffffu, i % 3 == 0);
    y[64 + i] = __any_sync(0xffffffffu, i == 40) * 2 + __all_sync(0xffffffffu, i < 32);
    y[128 + i] = __syncthreads_count(i % 4 == 0) * 4 + __syncthreads_or(i == 7) * 2 + __syncthreads_and(i < 63);
}
extern "C" __global__ void different(int *y) {
    if (threadIdx.x % 2) __syncthreads();
    else
        __syncthreads();
}
extern "C" __global__ void lanes_that_never_come(int *y) {
    if (threadIdx.x != 3) y[0] = __shfl_sync(0xffffffffu, 1, 0);
}
extern "C" __global__ void not_its_own(int *y) { __syncwarp(2); }
extern "C" __global__ void left_alone(int *y) {
    if (threadIdx.x < 10) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}
extern "C" __global__ void counted(int *count, int *most, unsigned long long *seen) {
    atomicAdd(count, 2);
    atomicMax(most, (int)threadIdx.x);
    atomicCAS(seen, (unsigned long long)threadIdx.x, (unsigned long long)threadIdx.x + 1);
}
extern "C" __global__ void halves(const float *x, unsigned short *half, unsigned short *brain, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        half[i] = __half_as_ushort(__float2half_rn(x[i]));
        brain[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
    }
}
extern "C" __global__ void wholes(const unsigned short *bits, float *half, float *brain, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        half[i] = __half2float(__ushort_as_half(bits[i]));
        brain[i] = __bfloat162float(__ushort_as_bfloat16(bits[i]));
    }
}
extern "C" __global__ void numbers(float *y) {
    float4 four = make_float4(1, 2, 3, 4);
    y[0] = four.w + rsqrtf(4.0f) + min(3, 4) + max(2.5f, 1.0f) + __uint_as_float(__float_as_uint(7.0f));
    y[1] = __popc(7u) + __ffs(8) + __clz(1) + (__brev(1u) == 0x80000000u) + __ldg(&y[2]);
}
"""


@pytest.fixture(scope="module")
def device():
    runtime = HostRuntime()
    return runtime, runtime.compile(SOURCE, "shim.cu", ()), runtime.stream()


def launch(device, name, outputs, *inputs, blocks=(1,), threads=(64,), shared_bytes=0):
    """The outputs, of (count, dtype), of a kernel that takes inputs, outputs and numbers."""
    runtime, kernels, stream = device
    arrays = [runtime.empty(x.shape, x.dtype) for x in inputs if isinstance(x, np.ndarray)]
    for host, array in zip([x for x in inputs if isinstance(x, np.ndarray)], arrays, strict=True):
        runtime.upload(host, array, stream)
    made = [runtime.empty((count,), dtype) for count, dtype in outputs]
    for array in made:
        runtime.clear(array, stream)
    numbers = [np.int32(x) for x in inputs if not isinstance(x, np.ndarray)]
    kernels[name].launch(blocks, threads, stream, [*arrays, *made, *numbers], shared_bytes)
    stream.synchronize()
    return [array._memory for array in made]


def test_every_thread_of_every_block_runs_once(device):
    (out,) = launch(device, "places", [(24 * 30, "int32")], blocks=(2, 3, 4), threads=(5, 3, 2))
    assert out.tolist() == [1000 * block + thread for block in range(24) for thread in range(30)]


def test_threads_wait_for_each_other(device):
    x = np.arange(256, dtype=np.int32)
    (y,) = launch(device, "turned", [(256, "int32")], x, 1, threads=(256,))
    assert y.tolist() == x[::-1].tolist()
    (y,) = launch(device, "rounds", [(5 * 40, "int32")], 5, 1, threads=(40,))
    assert y.tolist() == np.repeat(np.arange(5), 40).tolist()


def test_threads_that_do_not_wait_are_seen(device):
    (y,) = launch(device, "turned", [(256, "int32")], np.arange(256, dtype=np.int32), 0, threads=(256,))
    assert (y[:128] == -1).all()  # poison
    (y,) = launch(device, "rounds", [(5 * 40, "int32")], 5, 0, threads=(40,))
    assert y.tolist() != np.repeat(np.arange(5), 40).tolist()


def test_dynamic_shared_memory_ends_where_it_was_said(device):
    (y,) = launch(device, "dynamic", [(64, "float32")], 64, shared_bytes=256)
    assert y.tolist() == [2 * i for i in range(64)][::-1]
    with pytest.raises(DeviceError, match="kernel dynamic failed: wrote beyond the 256 bytes of dynamic shared memory"):
        launch(device, "dynamic", [(64, "float32")], 65, shared_bytes=256)


def test_shuffles(device):
    x, lane = np.arange(64) + 0.5, np.arange(64) % 32
    (y,) = launch(device, "shuffles", [(5 * 64, "float64")], x)
    y, base = y.reshape(5, 64), np.arange(64) - lane
    assert y[0].tolist() == x[base + (lane ^ 5)].tolist()
    assert y[1].tolist() == x[np.where(lane < 29, np.arange(64) + 3, np.arange(64))].tolist()
    assert y[2].tolist() == x[np.where(lane % 8 >= 3, np.arange(64) - 3, np.arange(64))].tolist()
    assert y[3].tolist() == x[base + lane // 16 * 16 + 2].tolist()
    assert y[4].tolist() == x[base + np.where(lane < 16, lane ^ 8, lane ^ 4)].tolist()


def test_votes(device):
    (y,) = launch(device, "votes", [(192, "int32")])
    ballots = [sum(1 << lane for lane in range(32) if (first + lane) % 3 == 0) for first in (0, 32)]
    assert y[:64].view(np.uint32).tolist() == np.repeat(ballots, 32).tolist()
    assert y[64:128].tolist() == [1] * 32 + [2] * 32
    assert y[128:].tolist() == [16 * 4 + 2] * 64


@pytest.mark.parametrize(
    "name, words",
    [
        ("different", r"wait at different __syncthreads, of lines \d+ and \d+"),
        ("lanes_that_never_come", r"thread 0 waits in line \d+ for lanes that never come"),
        ("not_its_own", "lane 0 is not in its own mask 00000002"),
    ],
)
def test_waiting_that_a_device_would_not_end(device, name, words):
    with pytest.raises(DeviceError, match=f"kernel {name} failed: .*{words}"):
        launch(device, name, [(64, "int32")])
    launch(device, "votes", [(192, "int32")])  # the next launch is none the worse


def test_threads_that_have_ended_are_not_waited_for(device):
    (y,) = launch(device, "left_alone", [(64, "int32")])
    assert y.tolist() == [0] * 10 + [1] * 54


def test_atomic_operations(device):
    count, most, seen = launch(device, "counted", [(1, "int32"), (1, "int32"), (1, "uint64")])
    assert (count[0], most[0], seen[0]) == (128, 63, 64)


def test_16_bits_are_rounded_as_numpy_and_ml_dtypes_do(device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(5).integers(0, 2**32, 50_000, np.uint64).astype(np.uint32)
    edges = np.array([0x477FEFFF, 0x477FF000, 0x387FFFFF, 0x33000000, 0x33000001, 0x7F7FFFFF, 0x7F800000], np.uint32)
    near = np.random.default_rng(6).uniform(-7e-5, 7e-5, 20_000).astype(np.float32)
    x = np.concatenate([bits.view(np.float32), edges.view(np.float32), -edges.view(np.float32), near])
    x = x[~np.isnan(x)]
    half, brain = launch(device, "halves", [(x.size, "uint16")] * 2, x, x.size)
    with np.errstate(over="ignore"):
        assert half.tolist() == x.astype(np.float16).view(np.uint16).tolist()
        assert brain.tolist() == x.astype(ml_dtypes.bfloat16).view(np.uint16).tolist()


def test_16_bits_are_read_as_numpy_and_ml_dtypes_do(device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(65536).astype(np.uint16)
    half, brain = launch(device, "wholes", [(65536, "float32")] * 2, bits, 65536)
    np.testing.assert_array_equal(half, bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(brain, bits.view(ml_dtypes.bfloat16).astype(np.float32))


def test_functions_of_numbers(device):
    (y,) = launch(device, "numbers", [(3, "float32")])
    assert y[:2].tolist() == [4 + 0.5 + 3 + 2.5 + 7, 3 + 4 + 31 + 1]
