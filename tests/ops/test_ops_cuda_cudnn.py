"""cuDNN's graphs: drawn with the library where it is installed, and executed by one that is made up."""

import inspect
import itertools
import re

import numpy as np
import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops import texts
from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import CudaConvolution
from ringtrain.ops.cuda.convolution.cudnn import IO, Cudnn, CudnnRequest, is_installed, make_graph, unwanted
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.precision import active_dtype
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.fake_cudnn import FakeCudnn
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cases import CONVOLUTIONS
from tests.ops.cuda_support import needs_compiler

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


# ── execution ────────────────────────────────────────────────────────────────────────────────────────────────
def device_with(precision, library_of=FakeCudnn, **rest):
    device = Device(HostRuntime(), "float32", active_dtype(precision, "float32"), precision != "tf32", **rest)
    device.stream.pointer = 7
    return device, library_of({7: device.stream})


def put(device, host):
    array = device.runtime.empty(host.shape, host.dtype)
    device.runtime.upload(np.ascontiguousarray(host), array, device.stream)
    return array


def get(device, array):
    host = np.empty(array.shape, array.dtype)
    device.runtime.download(array, host, device.stream)
    return host.astype(np.float64)


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["same", "stride 2, groups 2", "1x1, stride 2", "depthwise, pad 2"])
@pytest.mark.parametrize("all_float", [True, False])
def test_passes_as_the_reference(precision, name, all_float):
    """``all_float``: an engine gives dw of 16-bit arrays in float32; else in their type."""

    def refuses(graph):
        return not all_float and graph.out.data_type != graph.io

    device, library = device_with(precision, lambda streams: FakeCudnn(streams, refuses))
    h, w, c, k, geometry = CONVOLUTIONS[name]
    random, p, q = np.random.default_rng(2), geometry.output(h), geometry.output(w)
    x, dy = (random.integers(-3, 4, shape).astype(device.active) for shape in ((2, h, w, c), (2, p, q, k)))
    weight = random.integers(-3, 4, (geometry.kernel, geometry.kernel, c // geometry.groups, k)).astype("float32")
    b, dw = random.integers(-3, 4, k).astype("float32"), np.ones(weight.shape, "float32")
    plan, passes = make_convolution_plan(x.shape, weight.shape, dy.shape, geometry), Cudnn(device, library)
    assert passes.able(plan)
    given = [put(device, each) for each in (x, weight, b, dy, dw)]
    y, dx = device.runtime.empty(dy.shape, dy.dtype), device.runtime.empty(x.shape, x.dtype)
    for _ in range(2):
        passes.forward(plan, given[0], given[1], given[2], y, True)
    passes.input_back(plan, given[1], given[3], dx)
    passes.weights_back(plan, given[0], given[3], given[4], True)
    wanted = np.empty(dy.shape), np.ones(weight.shape), np.empty(x.shape)
    wide = [each.astype(np.float64) for each in (x, weight, b, dy)]
    reference = ReferenceOps("float64")
    reference.conv2d(*wide[:3], wanted[0], geometry, relu=True)
    reference.conv2d_back(*wide[:2], wanted[0], wide[3], wanted[1], None, wanted[2], geometry, accumulate=True)
    for got, host in zip((y, given[4], dx), wanted, strict=True):
        assert np.abs(get(device, got) - host.astype(got.dtype).astype(float)).max() <= 2.0**-7 * np.abs(host).max()
    assert len(library.graphs) == (3 if all_float or precision == "float32" else 4)
    assert all("random" in graph.notes for graph in library.graphs)


def small_plan():
    return ConvolutionPlan(1, 5, 5, 2, 5, 5, 2, 3, 1, 1, 1)


@needs_compiler
def test_what_has_no_engine_is_told_again_without_a_second_try():
    device, library = device_with("float32", lambda streams: FakeCudnn(streams, lambda graph: True))
    passes, array = Cudnn(device, library), device.runtime.empty(36, "float32")
    for _ in range(2):
        with pytest.raises(Unable, match=texts.CUDNN.pattern(error="no engine for this graph")):
            passes.input_back(small_plan(), array, array, array)
    assert len(library.graphs) == 1


@needs_compiler
def test_where_there_is_no_library_behind_the_one_that_is_installed():
    def create_handle():
        raise RuntimeError("Unable to find symbol")

    device, library = device_with("float32")
    library.create_handle, array = create_handle, device.runtime.empty(36, "float32")
    with pytest.raises(Unable, match=texts.CUDNN.pattern(error="Unable to find symbol")):
        Cudnn(device, library).input_back(small_plan(), array, array, array)


def test_neither_float64_nor_a_stream_that_is_none_of_a_device():
    runtime = HostRuntime()
    assert not Cudnn(Device(runtime, "float32", "float32")).able(small_plan())
    device = Device(runtime, "float64", "float64")
    device.stream.pointer = 7
    assert not Cudnn(device).able(small_plan())


@needs_compiler
def test_it_is_one_of_the_ways_and_may_be_recorded():
    """The clock favours the last way, which is cuDNN's; for dw there is no engine."""
    later = iter(range(1000, 0, -1))
    choice = Choice(measure=lambda *_: next(later))
    device, library = device_with(
        "float32",
        lambda streams: FakeCudnn(streams, lambda graph: graph.out.uid == 2),
        choice=choice,
    )
    layer = CudaConvolution(device, Cudnn(device, library))
    x, w, y = (put(device, np.ones(s, "float32")) for s in ((1, 5, 5, 2), (3, 3, 2, 2), (1, 5, 5, 2)))
    dw, dx = device.runtime.empty((3, 3, 2, 2), "float32"), device.runtime.empty((1, 5, 5, 2), "float32")

    def run():
        layer.conv2d(x, w, None, y, ConvGeometry(3, 1, 1))
        layer.conv2d_back(x, w, y, y, dw, None, dx, ConvGeometry(3, 1, 1))

    run()
    before = get(device, dx), get(device, dw)
    names = {work[0]: chosen.name for work, chosen in choice.table.items()}
    assert names == {"forward": "cuDNN", "input_back": "cuDNN", "weights_back": "implicit 64x64"}
    assert choice.notes == [texts.LEFT_OUT(name="cuDNN", times=1, why=texts.CUDNN(error="no engine for this graph"))]
    device.recording = True
    with device.runtime.record(device.stream) as graphs:
        run()
    device.recording = False
    device.runtime.clear(dx, device.stream)
    graphs[0].launch(device.stream)
    assert (get(device, dx) == before[0]).all() and (get(device, dw) == before[1]).all()
    assert before[0].max() == 18 * 18


class BindingError(Exception):
    """Of a class that a library has for itself."""


OTHER = texts.OTHER_RESULT.pattern(most=0.001)
SPOILT = {
    "raises": (
        {"fails": BindingError("CUDNN_STATUS_EXECUTION_FAILED")},
        texts.CUDNN_RAISED.pattern(kind="BindingError", error="CUDNN_STATUS_EXECUTION_FAILED"),
    ),
    "misses an array": (
        {"fails": ValueError("no tensor of uid 3")},
        texts.CUDNN_RAISED.pattern(kind="ValueError", error="no tensor of uid 3"),
    ),
    "gives other numbers": ({"spoils": lambda result: 1.02 * result}, OTHER),
    "gives NaN": ({"spoils": lambda result: np.nan * result}, OTHER),
}


@needs_compiler
@pytest.mark.parametrize("how, why", SPOILT.values(), ids=SPOILT)
def test_a_library_that_fails_or_is_wrong_is_left_out_with_a_note(how, why):
    """cuDNN is the fastest by the clock."""
    faster = itertools.count(1000, -1)
    choice = Choice(measure=lambda *_: next(faster))
    device, library = device_with("float32", choice=choice)
    vars(library).update(how)
    layer, random = CudaConvolution(device, Cudnn(device, library)), np.random.default_rng(4)
    x, w = (random.standard_normal(s).astype("float32") for s in ((1, 5, 5, 2), (3, 3, 2, 2)))
    y, dx, dw, wanted = (np.empty(s, "float32") for s in ((1, 5, 5, 2), (1, 5, 5, 2), (3, 3, 2, 2), (1, 5, 5, 2)))
    arrays = [put(device, each) for each in (x, w, y, dw, dx)]
    layer.conv2d(*arrays[:2], None, arrays[2], ConvGeometry(3, 1, 1))
    layer.conv2d_back(*arrays[:3], arrays[2], arrays[3], None, arrays[4], ConvGeometry(3, 1, 1))
    ReferenceOps("float32").conv2d(x, w, None, wanted, ConvGeometry(3, 1, 1))
    assert np.abs(get(device, arrays[2]) - wanted).max() < 1e-5
    assert len(choice.table) == 3 and all("cuDNN" not in each.names for each in choice.table.values())
    (note,) = choice.notes
    assert re.fullmatch(texts.LEFT_OUT.pattern(name="cuDNN", times=3, why="") + why, note)


@needs_compiler
def test_a_library_that_fails_when_it_was_chosen_is_told_as_an_error_of_the_device():
    device, library = device_with("float32")
    passes, array = Cudnn(device, library), device.runtime.empty(36, "float32")
    passes.input_back(small_plan(), array, array, array[:25])
    library.fails = RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.raises(
        DeviceError, match=texts.CUDNN_RAISED.pattern(kind="RuntimeError", error="CUDNN_STATUS_EXECUTION_FAILED")
    ):
        passes.input_back(small_plan(), array, array, array)


@needs_compiler
def test_a_runtime_that_keeps_account_hears_of_each_execution():
    device, library = device_with("float32")
    seen = []

    def timed(name, stream, arrays, work):
        seen.append((name, stream is device.stream, [array.size for array in arrays]))
        work()

    device.runtime.timed = timed
    x, w, y = (put(device, np.ones(s, "float32")) for s in ((1, 5, 5, 2), (3, 3, 2, 2), (1, 5, 5, 2)))
    Cudnn(device, library).forward(small_plan(), x, w, None, y, False)
    assert seen == [("cuDNN: forward", True, [50, 36, 50])] and get(device, y).max() == 18


def test_it_is_looked_for_without_being_imported():
    assert is_installed() in (True, False)
