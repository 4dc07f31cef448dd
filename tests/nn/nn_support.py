"""What the tests of nn share: small networks on the reference operations in float64, and directional derivatives."""

import numpy as np

from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.initial import initialise
from ringtrain.nn.losses import SoftmaxCrossEntropy
from ringtrain.ops.catalogue import make_ops

STEP = 1e-6  # of central differences: short, so that kinks (ReLU, maximum) are seldom crossed
TOLERANCE = 1e-6


def slope(value) -> float:
    """The derivative of value(step) at 0, by central differences."""
    return (value(STEP) - value(-STEP)) / (2 * STEP)


def reference(dtype="float64"):
    return make_ops("reference", dtype)


def make_pass(ops, count, total=None, start=0, space=None, **more) -> Pass:
    examples = ops.from_host(np.arange(start, start + count, dtype=np.int64))
    key = ops.from_host(np.array([17], np.uint64))
    return Pass(ops, space or Workspace(ops), examples=examples, total=total or count, key=key, **more)


def chain(*layers) -> list[Node]:
    """Layers one after another."""
    sources = [INPUT, *(layer.name for layer in layers)]
    return [Node(layer, (source,)) for layer, source in zip(layers, sources, strict=False)]


def bound_arena(graph, ops, seed) -> Arena:
    """The arena of a graph, which is bound to it, with its first weights."""
    arena = Arena(lambda n, dtype: ops.zeros((n,), dtype), graph.parameters(), ops.dtype)
    graph.bind(arena)
    initialise(arena, ops, seed)
    return arena


def windows(count=2, context=128):
    """Bytes of a text that can be learnt, and the bytes after them. Shapes: float64, int32 [count, context]"""
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog, and again: " * 40, np.uint8)
    rows = text[: count * (context + 1)].reshape(count, context + 1)
    return rows[:, :-1].astype(np.float64), rows[:, 1:].astype(np.int32)


class Net:
    """A bound network with random weights (so that no gradient is zero by symmetry) and a batch of its own."""

    def __init__(self, nodes, shape, count=5, fused=True, ops=None, seed=3):
        self.ops = ops or reference()
        self.graph = Graph(nodes, shape, fused)
        self.arena = bound_arena(self.graph, self.ops, seed)
        self.random = np.random.default_rng(seed)
        for span in self.arena.spans:
            jitter = 0.2 * self.random.standard_normal(span.shape)
            weight = self.arena.weight(span)
            self.ops.upload((self.ops.to_host(weight) + jitter).astype(self.ops.dtype), weight)
        self.count, self.x = count, self.random.standard_normal((count, *shape))
        classes = self.graph.shapes[self.graph.output][0]
        self.labels = self.random.integers(0, classes, count).astype(np.int32)
        self.loss = SoftmaxCrossEntropy(smoothing=0.1)

    def step(self, ctx=None, rows=slice(None), denominator=None):
        """(mean loss, spans as backward yields them) of some rows of the batch."""
        x, labels = self.x[rows], self.labels[rows]
        ctx = ctx or make_pass(self.ops, len(x))
        totals = self.ops.zeros((3,), "float64")
        logits, tapes = self.graph.forward(ctx, self.ops.from_host(x.astype(self.ops.dtype)))
        dlogits = self.loss.backward(ctx, logits, self.ops.from_host(labels), totals, denominator or len(self.labels))
        spans = self.graph.backward(ctx, dlogits, tapes)
        return self.ops.to_host(totals)[0] / len(self.labels), spans

    def gradients(self, **more) -> tuple[float, np.ndarray]:
        loss, spans = self.step(**more)
        list(spans)
        return loss, self.ops.to_host(self.arena.grads)

    def trained(self) -> np.ndarray:
        """1 for each trained element of the arena, 0 for padding and running statistics."""
        mask = np.zeros(self.arena.count)
        for span in self.arena.spans:
            if span.parameter.role != "statistic":
                mask[span.start : span.start + span.count] = 1
        return mask

    def directional(self, direction) -> float:
        """The derivative of the loss along a direction of the weights, by central differences."""
        start = self.ops.to_host(self.arena.weights)

        def loss(step):
            self.ops.upload(start + step * direction, self.arena.weights)
            return self.gradients()[0]

        expected = slope(loss)
        self.ops.upload(start, self.arena.weights)
        return expected

    def check_gradients(self, directions=3) -> float:
        """The largest relative error along random directions."""
        _, grads = self.gradients()
        worst = 0.0
        for _ in range(directions):
            direction = self.random.standard_normal(self.arena.count) * self.trained()
            expected, measured = self.directional(direction), float(grads @ direction)
            worst = max(worst, abs(measured - expected) / abs(expected))
        return worst
