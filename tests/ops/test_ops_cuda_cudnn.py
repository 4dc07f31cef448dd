"""cuDNN's graphs: drawn with the library where it is installed; and what is done around it, whatever it computes."""

import inspect
from types import SimpleNamespace

import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda.convolution.cudnn import IO, Cudnn, CudnnRequest, make_graph, unwanted
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.precision import active_dtype
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import needs_compiler
from tests.says import says

# Of ResNet-50 on 224 × 224: size in, channels in, channels out, kernel, stride. He et al. 2016, table 1, with the
# stride of a stage in its 3 × 3 convolution.
STEM = (224, 3, 64, 7, 2)


def stage(size, c, width, stride):
    out = size // stride
    yield from ((size, c, width, 1, 1), (size, width, width, 3, stride), (out, width, 4 * width, 1, 1))
    yield (size, c, 4 * width, 1, stride)
    yield from ((out, 4 * width, width, 1, 1), (out, width, width, 3, 1))


RESNET50 = sorted(
    {STEM, *stage(56, 64, 64, 1), *stage(56, 256, 128, 2), *stage(28, 512, 256, 2), *stage(14, 1024, 512, 2)}
)


def plan_of(size, c, k, kernel, stride):
    geometry = ConvGeometry(kernel, stride, kernel // 2)
    out = geometry.output(size)
    return make_convolution_plan((128, size, size, c), (kernel, kernel, c, k), (128, out, out, k), geometry)


def requests(plan):
    for io in ("BFLOAT16", "HALF", "FLOAT"):
        for bias, relu in ((False, False), (True, True)):
            yield CudnnRequest("forward", plan, io, io, bias, relu)
        yield CudnnRequest("input_back", plan, io, io)
        yield CudnnRequest("weights_back", plan, io, "FLOAT")


# ── the library ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def cudnn():
    return pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")


@pytest.fixture(scope="module")
def handle(cudnn):
    """Of nothing: good for drawing and validating alone."""
    return cudnn.Handle(1, 0, 0)


def has_backend(cudnn) -> bool:
    try:
        return cudnn.backend_version() > 0
    except RuntimeError:
        return False


@pytest.mark.parametrize("shape", RESNET50)
def test_every_convolution_of_resnet50_is_drawn(cudnn, handle, shape):
    plan, backend = plan_of(*shape), has_backend(cudnn)
    for request in requests(plan):
        graph = make_graph(cudnn, handle, request)
        assert graph.context.compute_data_type == graph.context.intermediate_data_type == cudnn.data_type.FLOAT
        known = {tensor.uid: tensor for tensor in graph.tensors.values() if not tensor.is_virtual}
        assert known.keys() == ({1, 2, 3, 4} if request.bias else {1, 2, 4})
        for tensor in known.values():
            _, c, h, w = tensor.dim
            assert tensor.stride == [h * w * c, 1, w * c, c]
        assert known[1].dim == [128, plan.channels, plan.height, plan.width]
        assert known[2].dim == [plan.features, plan.channels, plan.kernel, plan.kernel]
        assert known[4].dim == [128, plan.features, plan.p, plan.q]
        if backend:
            graph.validate()


def test_the_library_has_what_is_asked_of_it(cudnn):
    graph = cudnn.pygraph
    for name in ("build_operation_graph", "create_execution_plans", "check_support", "build_plans", "execute"):
        assert callable(getattr(graph, name))
    assert "handle" in inspect.signature(graph.execute).parameters
    assert callable(cudnn.create_handle) and callable(cudnn.set_stream)
    assert issubclass(cudnn.cudnnGraphNotSupportedError, Exception)
    assert {cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK}
    for io in IO.values():
        assert hasattr(cudnn.data_type, io)


def test_engines_that_are_not_wanted(cudnn):
    notes, plan = cudnn.numerical_note, plan_of(*STEM)
    full, half = (CudnnRequest("forward", plan, io, io) for io in ("FLOAT", "BFLOAT16"))
    assert unwanted(cudnn, full, True) == [notes.NONDETERMINISTIC, notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    assert unwanted(cudnn, full, False) == unwanted(cudnn, half, True) == [notes.NONDETERMINISTIC]


# ── around it ────────────────────────────────────────────────────────────────────────────────────────────────
PLAN = ConvolutionPlan(1, 5, 5, 2, 5, 5, 2, 3, 1, 1, 1)


def device_with(dtype="float32", pointer=7):
    device = Device(HostRuntime(), dtype, active_dtype("float32", dtype))
    device.stream.pointer = pointer
    return device


@needs_compiler
def test_what_it_cannot_do_is_told_each_time_and_tried_once():
    tried = []

    def create_handle():
        tried.append(1)
        raise RuntimeError("no symbol")

    device = device_with()
    passes, array = Cudnn(device, SimpleNamespace(create_handle=create_handle)), device.runtime.empty(36, "float32")
    for _ in range(2):
        with pytest.raises(Unable, match=says("cuDNN", "no symbol")):
            passes.input_back(PLAN, array, array, array)
    assert len(tried) == 1


def test_neither_float64_nor_a_stream_that_is_none_of_a_device():
    assert [Cudnn(device_with(**each)).able(PLAN) for each in ({}, {"pointer": None}, {"dtype": "float64"})] == [
        True, False, False,
    ]  # fmt: skip
