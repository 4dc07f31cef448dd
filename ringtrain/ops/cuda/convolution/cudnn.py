"""Convolution by cuDNN's graphs, where nvidia-cudnn-frontend and nvidia-cudnn are installed.

    forward   x, w, b ─► convolution ─► + b ─► max(·, 0) ─► y         one graph
    dx        dy, w   ─► its gradient ─► dx
    dw        x, dy   ─► its gradient ─► dw, in float32 where an engine can do that

cuDNN names dimensions N C H W and K C R S for any order in memory, which strides define: images are NHWC as everywhere,
weights KRSC, so that w_RSCK is transposed on its way there, and dw on its way back. Sums are float32 for all types of
arrays. Engines with nondeterministic results are excluded, and for full float32 engines of tensor cores. A graph is
built at its first call, which allocates; from then on calls may be recorded. A pass without an engine raises
:class:`~ringtrain.ops.cuda.faults.Unable`, at every call."""

import importlib
import importlib.util
from dataclasses import dataclass

from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.precision import RoundedWeights

X, W, BIAS, Y = 1, 2, 3, 4  # the graph's names of arrays, for dx, dw and dy too
IO = {"float32": "FLOAT", "bfloat16": "BFLOAT16", "float16": "HALF"}
SQUARE, LINES = 32, 8  # of the kernels that turn weights


def is_installed() -> bool:
    """Whether the library is installed, without importing it."""
    return importlib.util.find_spec("cudnn") is not None


@dataclass(frozen=True, slots=True)
class CudnnRequest:
    """A graph to build: ``what`` of forward, input_back and weights_back; ``io``: cuDNN's name of the arrays' type,
    ``result``: of the result's."""

    what: str
    plan: ConvolutionPlan
    io: str
    result: str
    bias: bool = False
    relu: bool = False


def channels_last(n: int, c: int, h: int, w: int) -> dict:
    """Return (logical dimensions N C H W, strides), in memory N H W C."""
    return {"dim": [n, c, h, w], "stride": [c * h * w, 1, w * c, c]}


def make_graph(library, handle, request: CudnnRequest):
    """Return the graph; this needs no device."""
    plan, types = request.plan, library.data_type
    io, real = getattr(types, request.io), types.FLOAT
    graph = library.pygraph(io_data_type=io, intermediate_data_type=real, compute_data_type=real, handle=handle)
    extents = {
        X: channels_last(plan.images, plan.channels, plan.height, plan.width),
        W: channels_last(plan.features, plan.group_channels, plan.kernel, plan.kernel),
        BIAS: channels_last(1, plan.features, 1, 1),
        Y: channels_last(plan.images, plan.features, plan.p, plan.q),
    }
    moves = {"padding": [plan.pad] * 2, "stride": [plan.stride] * 2, "dilation": [1, 1]}

    def array(name, uid, kind=io):
        return graph.tensor(**extents[uid], data_type=kind, name=name, uid=uid)

    if request.what == "forward":
        out, uid = graph.conv_fprop(image=array("x", X), weight=array("w", W), **moves), Y
        out = graph.bias(input=out, bias=array("b", BIAS, real)) if request.bias else out
        out = graph.relu(input=out) if request.relu else out
    elif request.what == "input_back":
        out, uid = graph.conv_dgrad(loss=array("dy", Y), filter=array("w", W), **moves), X
    else:
        out, uid = graph.conv_wgrad(image=array("x", X), loss=array("dy", Y), **moves), W
    # cuDNN never writes what is no output, and does not always infer extents and order.
    out.set_output(True).set_data_type(getattr(types, request.result))
    out.set_dim(extents[uid]["dim"]).set_stride(extents[uid]["stride"]).set_uid(uid)
    return graph


def unwanted(library, request: CudnnRequest, precise: bool) -> list:
    """Return the excluded properties of engines: nondeterminism, and tensor cores, which round float32 to TF32."""
    notes = library.numerical_note
    exact = [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS] if precise and request.io == "FLOAT" else []
    return [notes.NONDETERMINISTIC, *exact]


class Cudnn:
    """The passes by cuDNN. ``library``: the module cudnn, if not the installed one."""

    def __init__(self, device: Device, library=None):
        self._device, self._library = device, library
        self._handle = None
        self._built: dict[CudnnRequest, object] = {}
        self._workspaces: list = []  # the last is the largest; recorded work may have the address of another

    def able(self, plan: ConvolutionPlan) -> bool:
        return self._device.stream.pointer is not None and self._device.active.name in IO

    def forward(self, plan: ConvolutionPlan, x, w, b, y, relu, moments=None, ghost=0):
        """It makes no moments."""
        turned = self._turned(plan, w)
        pack = {X: x, W: turned, Y: y} if b is None else {X: x, W: turned, BIAS: b, Y: y}
        self._execute(self._request("forward", plan, bias=b is not None, relu=relu), pack)

    def input_back(self, plan: ConvolutionPlan, w, dy, dx):
        self._execute(self._request("input_back", plan), {Y: dy, W: self._turned(plan, w), X: dx})

    def weights_back(self, plan: ConvolutionPlan, x, dy, dw, accumulate):
        device = self._device
        rounded = self._request("weights_back", plan)
        request = CudnnRequest("weights_back", plan, rounded.io, "FLOAT")
        exact = self._is_able(request)
        turned = device.scratch("turned", dw.size, device.real if exact else device.active)
        self._execute(request if exact else rounded, {X: x, Y: dy, W: turned})
        kernel = device.kernels.of(turned.dtype)("matrix", "turn_back")
        self._turn(kernel, plan, turned, dw, int(accumulate))

    def _request(self, what, plan, **rest):
        io = IO[self._device.active.name]
        return CudnnRequest(what, plan, io, io, **rest)

    def _turned(self, plan, w):
        """Return the weights as [K, R, S, C], of the type of activations."""
        w = w.weights if isinstance(w, RoundedWeights) else w
        turned = self._device.scratch("turned", w.size, self._device.active)
        self._turn(self._device.kernels("matrix", "turn_weights"), plan, w, turned)
        return turned

    def _turn(self, kernel, plan, source, target, *rest):
        blocks = -(-plan.features // SQUARE), -(-plan.depth // SQUARE)
        kernel(blocks, (SQUARE, LINES), self._device.stream, source, target, plan.depth, plan.features, *rest)

    def _execute(self, request, pack):
        """Execute a graph. Raises: Unable for any error of the library."""
        graph, nbytes = self._find(request)
        runtime, space = self._device.runtime, self._workspace(nbytes)
        addresses = {uid: runtime.address(array) for uid, array in pack.items()}

        def work():
            graph.execute(addresses, runtime.address(space), handle=self._handle)

        try:
            runtime.timed(f"cuDNN: {request.what}", self._device.stream, list(pack.values()), work)
        except Exception as error:
            raise Unable(f"cuDNN: {type(error).__name__}: {error}") from error

    def _workspace(self, nbytes):
        if not self._workspaces or self._workspaces[-1].size < nbytes:
            self._workspaces.append(self._device.runtime.empty((max(1, nbytes),), "uint8"))
        return self._workspaces[-1]

    def _is_able(self, request) -> bool:
        try:
            self._find(request)
        except Unable:
            return False
        return True

    def _find(self, request):
        """Return (graph, bytes of workspace). Raises: Unable, at every call."""
        graph = self._built.get(request)
        if graph is None:
            graph = self._built[request] = self._build(request)
        if isinstance(graph, Unable):
            raise graph
        return graph

    def _build(self, request):
        try:
            library = self._open()
            graph = make_graph(library, self._handle, request)
            graph.build_operation_graph()
            graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(unwanted(library, request, self._device.precise))
            graph.check_support()
            graph.build_plans()
            return graph, graph.get_workspace_size()
        except Exception as error:  # of any class: a failure of the library must not end a run
            return Unable(f"cuDNN: {error}")

    def _open(self):
        """Return the module, with a handle of this stream."""
        if self._library is None:
            self._library = importlib.import_module("cudnn")
        if self._handle is None:
            handle = self._library.create_handle()
            self._library.set_stream(handle, self._device.stream.pointer)
            self._handle = handle
        return self._library
