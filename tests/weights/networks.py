"""What the tests of weights share: networks with random weights, their outputs here and in onnxruntime."""

import numpy as np
import onnxruntime

from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.initial import initialise
from ringtrain.ops.catalogue import make_ops
from ringtrain.weights.onnx_model import Preparation, make_onnx, onnx_shape

NOTHING = {"ringtrain": "test"}


def random_weights(graph: Graph, seed: int = 3) -> dict[str, np.ndarray]:
    """Drawn as a run does, then jittered, so that no scale is 0 or 1; variances stay positive."""
    ops = make_ops("reference", "float32")
    arena, random = Arena(lambda n, dtype: ops.zeros((n,), dtype), graph.parameters(), ops.dtype), None
    initialise(arena, ops, seed)
    random = np.random.default_rng(seed)
    weights = {}
    for span in arena.spans:
        spread = 0.1 * random.uniform(-1, 1, span.shape) if span.parameter.role != "weight" else 0
        weights[span.name] = (arena.weight(span) + spread).astype(np.float32)
    return weights


def output_here(graph: Graph, weights: dict[str, np.ndarray], x: np.ndarray, ops="cpu") -> np.ndarray:
    """The output of the network in evaluation, for prepared inputs [N,H,W,C]."""
    ops = make_ops(ops, "float32")
    arena = Arena(lambda n, dtype: ops.zeros((n,), dtype), graph.parameters(), ops.dtype)
    for span in arena.spans:
        ops.upload(weights[span.name], arena.weight(span))
    graph.bind(arena)
    ctx = Pass(ops, Workspace(ops), training=False, examples=np.arange(len(x)), key=np.zeros(1, np.uint64))
    y, _ = graph.forward(ctx, ops.from_host(np.ascontiguousarray(x, np.float32)))
    return ops.to_host(y).copy()


def output_there(
    graph: Graph, weights: dict[str, np.ndarray], x: np.ndarray, mean=None, scale=None, unit=None
) -> np.ndarray:
    """The output of onnxruntime, in the order of axes here."""
    channels = graph.input_shape[-1:]
    prepared = Preparation(np.zeros(channels) if mean is None else mean, np.ones(channels) if scale is None else scale)
    images = np.moveaxis(x, -1, 1) if x.ndim > 3 else x
    model = make_onnx(graph, weights, prepared, NOTHING, unit)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"images": np.ascontiguousarray(images, np.float32)})
    assert y.shape[1:] == onnx_shape(graph.shapes[graph.output])
    return np.moveaxis(y, 1, -1) if y.ndim > 3 else y
