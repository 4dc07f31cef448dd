"""The cost of each layer of a net: forward and backward in seconds, on this rank's shard of a batch.

The net runs as in training, on random examples; every layer is wrapped in one that reads the clock before and after.
Work outside of layers is measured separately: the input of a batch, the loss, the optimizer's update, and the work
between layers (the sums of gradients of an output with several readers). The learning rate is 0, so that every
iteration computes the same; nothing is exchanged.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ringtrain.arrays import Array
from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.nn import graph_checks, shapes
from ringtrain.nn.base import Layer, Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.losses import Loss
from ringtrain.ops.base import Ops
from ringtrain.ops.update import UPDATE_NUMBERS
from ringtrain.optim.optimizers import Optimizer, make_squares
from ringtrain.transport.base import Transport

FORWARD, BACKWARD = "forward", "backward"
INPUT, LOSS, UPDATE, BETWEEN, ITERATION = "input", "loss", "update", "between layers", "iteration"
WITHOUT_LAYER = (INPUT, LOSS, UPDATE, BETWEEN, ITERATION)
SIDE, MOST_SIDE = 512, 8192  # of the square matrices
COPIED = 1 << 24  # elements: beyond any cache
ENOUGH_S, REPEATS = 5e-3, 5

Key = tuple[str, str]  # layer and phase; the phase is empty where it is of WITHOUT_LAYER
Inputs = Callable[[Workspace], Iterator[tuple[Array, Array, Array]]]  # → the network's input, labels and examples


class Stopwatch:
    """Seconds of one iteration by key, of finished work: it waits for the device."""

    def __init__(self, ops: Ops):
        self._ops = ops
        self.seconds: dict[Key, float] = {}

    def time(self, key: Key, action: Callable):
        began = time.perf_counter()
        value = action()
        self._ops.synchronize()
        self.seconds[key] = time.perf_counter() - began
        return value


@dataclass(frozen=True)
class TimedLayer(Layer):
    """A layer with a clock around it."""

    layer: Layer
    watch: Stopwatch

    def __post_init__(self):
        for name in ("adds", "factors"):  # what a graph asks a layer for
            object.__setattr__(self, name, getattr(self.layer, name))

    def shape(self, inputs):
        return self.layer.shape(inputs)

    def parameters(self, inputs):
        return self.layer.parameters(inputs)

    def flops(self, inputs):
        return self.layer.flops(inputs)

    def repeats(self, ctx):
        return False  # the clock is looked at

    def forward(self, ctx, weights, xs):
        return self.watch.time((self.name, FORWARD), lambda: self.layer.forward(ctx, weights, xs))

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return self.watch.time(
            (self.name, BACKWARD), lambda: self.layer.backward(ctx, weights, grads, dy, tape, wanted)
        )


class LayerBench:
    """A net with weights, batches and an optimizer, on one rank.

    arena:  of its parameters
    count:  examples of this rank; total: of all ranks
    make:   (spans) → optimizer
    loss:   at the end of the network
    inputs: brings one batch of this rank after another
    ways:   by layer, the way that its operations take
    """

    def __init__(
        self,
        ops: Ops,
        graph: Graph,
        arena: Arena,
        count: int,
        total: int,
        make: Callable[..., Optimizer],
        loss: Loss,
        inputs: Inputs,
    ):
        self._ops, self._watch, self._loss = ops, Stopwatch(ops), loss
        inputs_of = partial(graph_checks.input_shapes, known=graph.shapes)
        self.ways = {node.name: node.layer.variant(ops, count, inputs_of(node)) for node in graph.plan}
        nodes = [replace(node, layer=TimedLayer(node.name, node.layer, self._watch)) for node in graph.plan]
        self._graph = Graph(nodes, graph.input_shape, fused=False)
        self._arena = arena
        self._graph.bind(arena)
        self._optimizer = make(self._arena.spans)
        self._slots = {name: ops.zeros((self._arena.count,)) for name in self._optimizer.slots}
        self._numbers, self._squares = ops.zeros((UPDATE_NUMBERS,), "float64"), make_squares(self._optimizer, ops)
        self._totals = ops.zeros((3,), "float64")
        key = ops.from_host(np.zeros(1, np.uint64))
        self._ctx = Pass(ops, Workspace(ops), total=total, key=key)
        self._inputs = inputs(self._ctx.space)
        form, _ = loss.labels_of(graph.shapes[graph.output])
        self._labelled = total * shapes.element_count(form.shape)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of weights, gradients and the optimizer's state."""
        return (2 + len(self._slots)) * self._arena.count * self._ops.dtype.itemsize

    def iterate(self) -> dict[Key, float]:
        """Run one iteration and return its seconds by key."""
        watch = self._watch
        watch.seconds = {}
        watch.time((ITERATION, ""), self._iterate)
        inside = sum(seconds for (name, _), seconds in watch.seconds.items() if name != ITERATION)
        watch.seconds[BETWEEN, ""] = watch.seconds[ITERATION, ""] - inside
        return watch.seconds

    def _iterate(self) -> None:
        ctx, watch = self._ctx, self._watch
        x, labels, ctx.examples = watch.time((INPUT, ""), lambda: next(self._inputs))
        logits, tapes = self._graph.forward(ctx, x)
        arguments = logits, labels, self._totals, self._labelled
        dlogits = watch.time((LOSS, ""), lambda: self._loss.backward(ctx, *arguments))
        for _ in self._graph.backward(ctx, dlogits, tapes):
            pass
        watch.time((UPDATE, ""), self._update)

    def _update(self) -> None:
        self._ops.begin_update(self._numbers)  # its rate is 0
        arrays = self._arena.weights, self._arena.grads, self._slots, self._numbers
        self._optimizer.apply(self._ops, *arrays, 0, self._arena.count, squares=self._squares)


def keys_of(graph: Graph) -> list[Key]:
    """Return every key of an iteration: layers in order, each forward and backward, then the work outside of layers."""
    layers = [(node.name, phase) for node in graph.plan for phase in (FORWARD, BACKWARD)]
    return [*layers, *((name, "") for name in WITHOUT_LAYER)]


def measure_layers(
    transport: Transport, layer_bench: LayerBench, keys: list[Key], iterations: int
) -> dict[Key, list[float]]:
    """Return the seconds of each iteration by key, each the slowest rank's. A barrier starts the ranks together. A
    layer whose backward never runs, since nothing before it is trained, has 0 there. Collective.
    """
    samples = []
    for _ in range(iterations):
        transport.barrier()
        seconds = layer_bench.iterate()
        samples.append([seconds.get(key, 0.0) for key in keys])
    everyone = np.reshape(transport.gather_json(samples), (transport.size, iterations, len(keys)))
    slowest = np.max(everyone, axis=0)  # [iterations, keys]
    return {key: slowest[:, i].tolist() for i, key in enumerate(keys)}


# ── peaks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that the machine gives, all ranks computing at the same time: multiplications and additions in a large
    product, bytes in a large copy."""

    flops_per_s: float
    bytes_per_s: float

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """Return the least time for so many operations and bytes: one of them is the limit."""
        return max(flops / self.flops_per_s, nbytes / self.bytes_per_s)


def measure_peaks(transport: Transport, ops: Ops) -> Peaks:
    """Measure on all ranks at once; the slowest rank counts for all. Collective."""
    transport.barrier()
    flops = _product_rate(ops)
    transport.barrier()
    nbytes = _copy_rate(ops)
    slowest = np.min(transport.gather_json([flops, nbytes]), axis=0) * transport.size
    return Peaks(*slowest.tolist())


def _product_rate(ops: Ops) -> float:
    """Return operations a second, of matrices that keep a fast device busy long enough."""
    side = SIDE
    while True:
        x, y = (ops.zeros((side, side), ops.active) for _ in range(2))
        w = ops.zeros((side, side))
        seconds = _least(ops, partial(ops.linear, x, w, None, y))
        if seconds >= ENOUGH_S or 2 * side > MOST_SIDE:
            return 2 * side**3 / seconds
        side *= 2


def _copy_rate(ops: Ops) -> float:
    x, y = (ops.zeros((COPIED,)) for _ in range(2))
    return 2 * COPIED * ops.dtype.itemsize / _least(ops, lambda: ops.copy(x, y))


def _least(ops: Ops, run: Callable[[], None]) -> float:
    """Return the least seconds of a call after the first."""
    run()
    ops.synchronize()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        ops.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
