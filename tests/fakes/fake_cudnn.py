"""The module cudnn as far as convolution asks of it: on memory of the host's device, in the order of its streams.

What is drawn is computed by the reference, from addresses, dimensions and strides alone; what the library would pass
over without a word is refused here: a result that is not said to be one, a step left out, an array that is missing.
"""

import ctypes
from types import SimpleNamespace

import numpy as np

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.host_streams import HostStream

REFERENCE = ReferenceOps("float64")


class cudnnGraphNotSupportedError(Exception):
    pass


class FakeCudnn:
    """``streams``: by their pointers. ``refuses(graph)``: whether there is no engine for it. ``fails``: what execution
    raises; ``spoils(result)``: what it gives in the result's place."""

    data_type = SimpleNamespace(FLOAT="float32", HALF="float16", BFLOAT16="bfloat16")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(TENSOR_CORE="cores", DOWN_CONVERT_INPUTS="down", NONDETERMINISTIC="random")
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError

    def __init__(self, streams: dict[int, HostStream], refuses=lambda graph: False):
        self.streams, self.refuses, self.graphs = streams, refuses, []

    fails, spoils = None, staticmethod(lambda result: result)

    def create_handle(self):
        return SimpleNamespace(stream=None)

    def set_stream(self, handle, pointer):
        handle.stream = self.streams[pointer]

    def pygraph(self, **given):
        self.graphs.append(FakeGraph(self, **given))
        return self.graphs[-1]


class FakeTensor:
    """``value(arrays)``: N C H W, of what is at the addresses of the graph's arrays."""

    def __init__(self, value, dim=None, stride=None, data_type=None, uid=None, given=False):
        self.value, self.dim, self.stride = value, dim, stride
        self.data_type, self.uid, self.given, self.output = data_type, uid, given, False

    def set_output(self, output):
        self.output = output
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def at(self, address):
        dtype = np.dtype(_named(self.data_type))
        count = 1 + sum((n - 1) * stride for n, stride in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        strides = [stride * dtype.itemsize for stride in self.stride]
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype, count), self.dim, strides)


def _named(data_type):
    if data_type != "bfloat16":
        return data_type
    from ml_dtypes import bfloat16

    return bfloat16


class FakeGraph:
    def __init__(self, library, io_data_type, intermediate_data_type, compute_data_type, handle):
        self._library, self._handle, self._tensors, self._steps = library, handle, [], []
        self.io, self.types, self.notes = io_data_type, (intermediate_data_type, compute_data_type), []

    def tensor(self, dim, stride, data_type, name, uid):
        return self._new(lambda arrays: arrays[uid].astype(np.float64), dim, stride, data_type, uid, True)

    def conv_fprop(self, image, weight, padding, stride, dilation):
        def value(arrays):
            x, w = _nhwc(image.value(arrays)), _rsck(weight.value(arrays))
            geometry = _geometry(x.shape[3], w, padding, stride, dilation)
            y = np.empty((x.shape[0], geometry.output(x.shape[1]), geometry.output(x.shape[2]), w.shape[3]))
            REFERENCE.conv2d(x, w, None, y, geometry)
            return _nchw(y)

        return self._new(value)

    def conv_dgrad(self, loss, filter, padding, stride, dilation):
        def value(arrays):
            n, c, h, w = result.dim
            return _nchw(_back(loss, (n, h, w, c), _rsck(filter.value(arrays)), arrays, (padding, stride, dilation))[1])

        result = self._new(value)
        return result

    def conv_wgrad(self, image, loss, padding, stride, dilation):
        def value(arrays):
            x, (k, c, r, s) = _nhwc(image.value(arrays)), result.dim
            moves = padding, stride, dilation
            return _back(loss, x.shape, np.zeros((r, s, c, k)), arrays, moves, x)[0].transpose(3, 2, 0, 1)

        result = self._new(value)
        return result

    def bias(self, input, bias):
        return self._new(lambda arrays: input.value(arrays) + bias.value(arrays))

    def relu(self, input):
        return self._new(lambda arrays: np.maximum(input.value(arrays), 0))

    def _new(self, *given):
        self._tensors.append(FakeTensor(*given))
        return self._tensors[-1]

    # ── building ──────────────────────────────────────────────────────────────────────────────────────────────
    def build_operation_graph(self):
        assert self.types == ("float32", "float32"), "sums of less than float32"
        (out,) = [tensor for tensor in self._tensors if tensor.output]
        assert out is self._tensors[-1] and out.dim and out.stride and out.data_type and out.uid, "no result"
        assert all(tensor.stride[1] == 1 for tensor in self._tensors if tensor.given or tensor.output), "not NHWC"
        self.out = out
        self._step(0)

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]
        self._step(1)

    def deselect_numeric_notes(self, notes):
        self.notes = notes
        return self

    def check_support(self):
        self._step(2)
        if self._library.refuses(self):
            raise cudnnGraphNotSupportedError("no engine for this graph")

    def build_plans(self):
        self._step(3)

    def _step(self, number):
        assert len(self._steps) == number, f"steps {self._steps}, and then the one of number {number}"
        self._steps.append(number)

    def get_workspace_size(self):
        assert len(self._steps) == 4
        return 100

    def execute(self, addresses, workspace, handle):
        assert len(self._steps) == 4 and handle is self._handle and workspace
        if self._library.fails is not None:
            raise self._library.fails
        known = {tensor.uid: tensor for tensor in self._tensors if tensor.given or tensor.output}
        assert addresses.keys() == known.keys(), (addresses, known)
        handle.stream.issue("cudnn", lambda: self._run(known, addresses))

    def _run(self, known, addresses):
        arrays = {uid: tensor.at(addresses[uid]) for uid, tensor in known.items()}
        arrays[self.out.uid][...] = self._library.spoils(self.out.value(arrays)).astype(arrays[self.out.uid].dtype)


def _nhwc(x):
    return x.transpose(0, 2, 3, 1)


def _nchw(x):
    return x.transpose(0, 3, 1, 2)


def _rsck(w_KCRS):
    return w_KCRS.transpose(2, 3, 1, 0)


def _geometry(channels, w_RSCK, padding, stride, dilation):
    assert dilation == [1, 1] and padding[0] == padding[1] and stride[0] == stride[1]
    return ConvGeometry(w_RSCK.shape[0], stride[0], padding[0], channels // w_RSCK.shape[2])


def _back(loss, x_shape, w, arrays, moves, x=None):
    """(dw, dx)"""
    dy, dw, dx = _nhwc(loss.value(arrays)), np.empty(w.shape), np.empty(x_shape)
    x = np.zeros(x_shape) if x is None else x
    geometry = _geometry(x_shape[3], w, *moves)
    REFERENCE.conv2d_back(x, w, np.empty_like(dy), dy, dw, None, dx, geometry)
    return dw, dx
