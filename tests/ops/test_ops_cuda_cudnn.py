"""cuDNN's graphs: drawn with the library where it is installed; and what is done around it, whatever it computes."""

import inspect
import itertools
import re

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import CudaConvolution
from ringtrain.ops.cuda.convolution.cudnn import IO, Cudnn, CudnnRequest, make_graph, unwanted
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.precision import RoundedWeights, active_dtype
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.fake_cudnn import FakeCudnn, cudnnGraphNotSupportedError
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import get, needs_compiler, put
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
NO_ENGINE = cudnnGraphNotSupportedError("no engine")
FAILURE = RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
RAISED = says("RuntimeError", "CUDNN_STATUS_EXECUTION_FAILED")


def device_with(precision="float32", dtype="float32", pointer=7, **rest):
    device = Device(HostRuntime(), dtype, active_dtype(precision, dtype), precision != "tf32", **rest)
    device.stream.pointer = pointer
    return device


@needs_compiler
@pytest.mark.parametrize("precision, refuses", [("float32", []), ("bfloat16", []), ("bfloat16", [NO_ENGINE])], ids=str)
@pytest.mark.parametrize("accumulate", [True, False])
def test_weights_are_turned_on_their_way_there_and_back(precision, refuses, accumulate):
    """Nothing is computed, so that what comes back as dw is what lies there: in float32, where an engine gives that."""
    device, library = device_with(precision), FakeCudnn(refuses=refuses)
    passes, w = Cudnn(device, library), np.random.default_rng(2).integers(-9, 9, (3, 3, 2, 2)).astype("float32")
    weights, dw, turned = put(device, w), put(device, np.ones_like(w)), w.transpose(3, 0, 1, 2).reshape(-1)
    for stored in (weights, RoundedWeights(weights, put(device, w.astype(device.active)))):
        assert get(device, passes._turned(PLAN, stored)).tolist() == turned.tolist()
    kind = device.active if refuses else device.real
    device.runtime.upload(turned.astype(kind), device.scratch("turned", w.size, kind), device.stream)
    passes.weights_back(PLAN, weights, weights, dw, accumulate)
    assert get(device, dw).tolist() == (w + accumulate).tolist() and library.graphs == 1 + len(refuses)


@needs_compiler
@pytest.mark.parametrize(
    "library, words, built",
    [
        (FakeCudnn(refuses=[NO_ENGINE]), says("no engine"), 1),
        (FakeCudnn(no_handle=RuntimeError("no symbol")), says("no symbol"), 0),
        (FakeCudnn(fails=FAILURE), RAISED, 1),
    ],
    ids=["no engine", "no library behind it", "failure"],
)
def test_what_it_cannot_do_is_told_each_time_and_tried_once(library, words, built):
    device = device_with()
    passes, array = Cudnn(device, library), device.runtime.empty(36, "float32")
    for _ in range(2):
        with pytest.raises(Unable, match=words):
            passes.input_back(PLAN, array, array, array)
    assert library.graphs == built


def test_neither_float64_nor_a_stream_that_is_none_of_a_device():
    stored = ({}, True), ({"pointer": None}, False), ({"dtype": "float64", "precision": "float32"}, False)
    assert [Cudnn(device_with(**each)).able(PLAN) for each, _ in stored] == [able for _, able in stored]


@needs_compiler
@pytest.mark.parametrize(
    "library, why",
    [(FakeCudnn(fails=FAILURE), RAISED), (FakeCudnn(), says("0.001"))],
    ids=["raises", "gives other numbers"],
)
def test_a_library_that_fails_or_is_wrong_is_left_out_with_a_note(library, why):
    """Although cuDNN is the fastest by the clock."""
    faster = itertools.count(1000, -1)
    choice = Choice(measure=lambda *_: next(faster))
    device = device_with(choice=choice)
    layer, random = CudaConvolution(device, Cudnn(device, library)), np.random.default_rng(4)
    x, w = (random.standard_normal(s).astype("float32") for s in ((1, 5, 5, 4), (3, 3, 4, 4)))
    y, dx, dw, wanted = (np.empty_like(each) for each in (x, x, w, x))
    arrays = [put(device, each) for each in (x, w, y, dw, dx)]
    layer.conv2d(*arrays[:2], None, arrays[2], ConvGeometry(3, 1, 1))
    layer.conv2d_back(*arrays[:3], arrays[2], arrays[3], None, arrays[4], ConvGeometry(3, 1, 1))
    ReferenceOps("float32").conv2d(x, w, None, wanted, ConvGeometry(3, 1, 1))
    assert np.abs(get(device, arrays[2]) - wanted).max() < 1e-5
    assert len(choice.table) == 3 and all("cuDNN" not in each.seconds for each in choice.table.values())
    (note,) = choice.notes
    assert re.fullmatch(says("cuDNN", 3) + why, note)


@needs_compiler
def test_a_runtime_that_keeps_account_hears_of_each_execution():
    device, seen = device_with(), []
    device.runtime.timed = lambda name, stream, arrays, work: seen.append((name, stream, [x.size for x in arrays]))
    x, w, y = (put(device, np.ones(s, "float32")) for s in ((1, 5, 5, 2), (3, 3, 2, 2), (1, 5, 5, 2)))
    Cudnn(device, FakeCudnn()).forward(PLAN, x, w, None, y, False)
    assert seen == [("cuDNN: forward", device.stream, [50, 36, 50])]
