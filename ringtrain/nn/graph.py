"""A network: layers joined by name into a directed graph without cycles, in the order of the model file.

Forward visits the layers in order, backward in the reverse order, which makes a gradient final as soon as its
layer has been visited: all readers of an output come after it in the file. So backward yields the spans of
the arena exactly from last to first, and an exchange may start on each as it comes.

An activation is needed until the last layer that reads it has run, backward if the pass has one. A pass that recomputes
drops those within a block of layers, and runs the block forward again right before it runs it backward."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from ringtrain.arrays import Array
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.nn import capture_segments, describe, graph_checks
from ringtrain.nn.base import Parameter, Pass, Shape, Views, Wanted
from ringtrain.nn.capture_segments import CaptureSegment
from ringtrain.nn.fuse import as_far_as, fold_layers
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.recompute import Block, make_blocks
from ringtrain.ops.base import Value
from ringtrain.ops.normalised import Measured, Normalised
from ringtrain.ops.precision import RoundedWeights

TRAINING, EVALUATION, AGAIN = "training", "evaluation", "again"  # kinds of passes; again: a block in backward


@dataclass(slots=True)
class Tapes:
    """One forward pass: each computed output, and each layer's tape for its backward. ``dx``: after backward, the
    gradient of the input, if the graph computes it."""

    outputs: dict[str, Array] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    dx: Array | None = None


@dataclass(frozen=True, slots=True)
class ArenaPart:
    """A layer's part of the arena."""

    weights: Views
    grads: Views
    spans: tuple[Span, ...]


class Graph:
    """A network. nodes: the model file's, kept in ``.nodes``; ``.plan`` is computed, with ReLUs and sums folded.
    wants_dx: whether backward also computes the gradient of the input: for a part that follows others

    Raises: ModelError if names or shapes do not fit"""

    def __init__(self, nodes: Iterable[Node], input_shape: Shape, fused: bool = True, wants_dx: bool = False):
        self.nodes: tuple[Node, ...] = tuple(nodes)
        graph_checks.check_graph(self.nodes)
        self.shapes = graph_checks.infer_shapes(self.nodes, input_shape)
        self.plan = fold_layers(self.nodes) if fused else self.nodes
        self.output, self.wants_dx = self.nodes[-1].name, wants_dx
        self._needing = graph_checks.gradients_needed(self.plan, self.shapes, {INPUT} if wants_dx else ())
        self._arena: Arena | None = None
        self._roundings: dict[frozenset[str], dict[str, slice]] = {}
        self._views: dict[str, ArenaPart] = {}
        self._plans: dict[tuple, list[CaptureSegment]] = {}
        self._blocks: dict[tuple, list[Block]] = {}
        self._positions = {node.name: i for i, node in enumerate(self.plan)}
        self._last_reader = {source: i for i, node in enumerate(self.plan) for source in node.inputs}

    @property
    def input_shape(self) -> Shape:
        return self.shapes[INPUT]

    @property
    def entries(self) -> int | None:
        """The entries of the embedding that reads the input, which are whole numbers below it; None: any numbers."""
        counts = (getattr(node.layer, "entries", None) for node in self.nodes if INPUT in node.inputs)
        return min(filter(None, counts), default=None)

    def parameters(self) -> tuple[tuple[str, Parameter], ...]:
        """Return (full name, parameter) in layer order: the table of an arena."""
        return tuple(
            (f"{node.name}.{parameter.name}", replace(parameter, frozen=parameter.name in node.layer.frozen))
            for node in self.plan
            for parameter in node.layer.parameters(graph_checks.input_shapes(node, self.shapes))
        )

    def bind(self, arena: Arena) -> None:
        """Use the weights and gradients of an arena that was made from :meth:`parameters`, of this graph or of one that
        contains it."""
        self._arena = arena
        self._roundings.clear()
        spans: dict[str, list[Span]] = {node.name: [] for node in self.plan}
        for span in arena.spans:
            layer = span.name.rpartition(".")[0]
            if layer in spans:
                spans[layer].append(span)
        for layer, layer_spans in spans.items():
            weights = {span.parameter.name: arena.weight(span) for span in layer_spans}
            grads = {span.parameter.name: arena.grad(span) for span in layer_spans}
            self._views[layer] = ArenaPart(weights, grads, tuple(layer_spans))

    def forward(
        self, ctx: Pass, x: Array, upto: str | None = None, need: Callable[[Span], None] | None = None
    ) -> tuple[Array, Tapes]:
        """Return the last layer's output (or layer ``upto``'s), and the tapes for :meth:`backward`. ``need``
        is called with each span before it is read."""
        tapes = Tapes({INPUT: x})
        ctx.space.begin(_kind(ctx))
        nodes = self._until(upto)
        for number, block in enumerate(self._blocks_of(ctx, nodes)):
            part = self._run(ctx, ("forward", upto, ctx.waits, number), block.nodes, tapes.outputs, need)
            if block.recomputed:
                tapes.outputs[block.output] = part.outputs[block.output]
                ctx.space.keep(arrays_in((tapes.outputs.values(), tapes.kept.values())))
            else:
                tapes.outputs.update(part.outputs)
                tapes.kept.update(part.kept)
        if not ctx.training:
            ctx.space.end(EVALUATION)
        return tapes.outputs[nodes[-1].name], tapes

    def _run(
        self, ctx: Pass, key: tuple, nodes: tuple[Node, ...], before: Views, need: Callable[[Span], None] | None = None
    ) -> Tapes:
        """Return the outputs of these layers, from the outputs ``before`` them, and their tapes."""
        tapes = Tapes()
        plan = self._segments(ctx, key, partial(capture_segments.cut, ctx, nodes, before=ctx.waits))
        for number, segment in enumerate(plan):
            if need is not None:
                for span in chain.from_iterable(self._views[node.name].spans for node in segment):
                    need(span)
            run = partial(self._through, ctx, segment, ChainMap(tapes.outputs, before))
            part = self._recorded(ctx, (*key, number), segment, before[INPUT].shape[0], run)
            tapes.outputs.update(part.outputs)
            tapes.kept.update(part.kept)
        return tapes

    def _through(self, ctx: Pass, segment: CaptureSegment, before: MutableMapping[str, Array]) -> Tapes:
        """Return the outputs of a segment's layers, from the outputs ``before`` it."""
        tapes = Tapes()
        known = ChainMap(tapes.outputs, before)
        for node in segment:
            ctx.layer = node.name
            if ctx.rounds:
                self._round(ctx, node)
            xs = [known[source] for source in node.inputs]
            y, kept = node.layer.forward(ctx, self._weights(ctx, node), xs)
            tapes.outputs[node.name], tapes.kept[node.name] = y, kept
            if not ctx.training and ctx.space.planning:
                ctx.space.keep(self._still_read(known, node, y))
        return tapes

    def _round(self, ctx: Pass, node: Node) -> None:
        """Round weights for this pass, as far as they are there: those up to the next layer that waits, at once."""
        if ctx.waits not in self._roundings:
            self._roundings[ctx.waits] = self._rounding_parts(ctx)
        part = self._roundings[ctx.waits].get(node.name)
        if part is not None and self._arena is not None:
            ctx.ops.copy(self._arena.weights[part], self._rounded(ctx, self._arena)[part])

    def _rounding_parts(self, ctx: Pass) -> dict[str, slice]:
        """The layers at which weights are rounded, and the part of the arena."""
        waiting, parts, first = capture_segments.layers_of(ctx.waits), dict[str, slice](), ""
        for node in self.plan:
            spans = self._views[node.name].spans
            if spans:
                first = node.name if not first or node.name in waiting else first
                parts[first] = slice(parts[first].start if first in parts else spans[0].start, spans[-1].stop)
        return parts

    def _weights(self, ctx: Pass, node: Node) -> dict[str, Any]:
        """A layer's weights: factors of products also as the pass has rounded them."""
        views = self._views[node.name]
        if self._arena is None or not ctx.rounds:
            return views.weights
        flat = self._rounded(ctx, self._arena)
        factors = {span.parameter.name: span for span in views.spans if span.parameter.name in node.layer.factors}
        return views.weights | {
            name: RoundedWeights(views.weights[name], flat[span.start : span.start + span.count].reshape(span.shape))
            for name, span in factors.items()
        }

    @staticmethod
    def _rounded(ctx: Pass, arena: Arena) -> Array:
        return ctx.space("rounded weights", (arena.count,))

    def _still_read(self, known: Mapping[str, Array], node: Node, y: Array) -> Iterator[Array]:
        """The outputs that layers after this one read, in a pass that has no backward."""
        position = self._positions[node.name]
        yield y
        for name, output in known.items():
            if self._last_reader.get(name, -1) > position:
                yield output

    def _blocks_of(self, ctx: Pass, nodes: tuple[Node, ...]) -> list[Block]:
        """Return the blocks that a pass runs forward, and backward in the reverse order."""
        if not (ctx.recompute and ctx.training):
            return [Block(nodes)]
        key = nodes[-1].name, ctx.add_over_ranks is None
        if key not in self._blocks:
            self._blocks[key] = make_blocks(ctx, nodes, self.shapes)
        return self._blocks[key]

    def _segments(self, ctx: Pass, key: tuple, make: Callable[[], list[CaptureSegment]]) -> list[CaptureSegment]:
        """Return the segments of ``make()``, made once for all passes with the same cuts."""
        alike = (*key, ctx.recompute, ctx.recorded and ctx.ops.records, ctx.training, ctx.add_over_ranks is None)
        if alike not in self._plans:
            self._plans[alike] = make()
        return self._plans[alike]

    def _recorded(self, ctx: Pass, key: tuple, segment: CaptureSegment, count: int, run: Callable[[], Value]) -> Value:
        """Return the result of ``run()``, recorded if possible. ``key``, ``count``: identify its operations, beside the
        pass."""
        if not capture_segments.is_recordable(ctx, segment):
            return run()
        ctx.layer = ""
        return ctx.ops.segment((self, *key, count, ctx.training, ctx.space, ctx.space.replaced), run)

    def _until(self, upto: str | None) -> tuple[Node, ...]:
        if upto is None:
            return self.plan
        for i, node in enumerate(self.plan):
            if upto in (node.name, *node.folded):
                return (*self.plan[:i], as_far_as(node, upto))
        raise graph_checks.unknown_layer(upto, [node.name for node in self.nodes])

    def backward(self, ctx: Pass, dlogits: Array, tapes: Tapes) -> Iterator[Span]:
        """Compute gradients into the arena, and yield each span as its gradient becomes final. ``dlogits``
        may be overwritten. The pass must have been a training one."""
        owed: Views = {self.plan[-1].name: dlogits}
        for number, block in reversed(list(enumerate(self._blocks_of(ctx, self.plan)))):
            if block.recomputed:
                del tapes.outputs[block.output]  # all layers that read it have run backward
                ctx.space.keep(chain(owed.values(), self._still_kept(ctx, tapes, block.nodes[0])))
                ctx.space.switch_kind(AGAIN)
                tapes.kept.update(self._run(ctx, ("again", number), block.nodes, tapes.outputs).kept)
                ctx.space.switch_kind(_kind(ctx))
            nodes = [node for node in reversed(block.nodes) if node.name in self._needing]
            key = "backward", ctx.cuts, number
            plan = self._segments(ctx, key, partial(capture_segments.cut, ctx, nodes, after=ctx.cuts))
            for part, segment in enumerate(plan):
                run = partial(self._back, ctx, segment, owed, tapes)
                more = part, ctx.total, ctx.accumulate
                owed = self._recorded(ctx, (*key, *more), segment, dlogits.shape[0], run)
                for node in segment:
                    yield from reversed(self._views[node.name].spans)
        for node in reversed(self.plan):  # frozen, and without a trained layer before
            if node.name not in self._needing:
                views = self._views[node.name]
                for grad in views.grads.values():  # exchanged with the others: what is left there would add up
                    ctx.ops.fill(grad, 0)
                yield from reversed(views.spans)
        tapes.dx = owed.get(INPUT)
        ctx.space.end(TRAINING, AGAIN)

    def _back(self, ctx: Pass, segment: CaptureSegment, before: Views, tapes: Tapes) -> Views:
        """Return the gradients of outputs that are still incomplete after a segment, from those ``before`` it."""
        owed = dict(before)
        for node in segment:
            ctx.layer = node.name
            weights, grads, dy = self._weights(ctx, node), self._views[node.name].grads, owed.pop(node.name)
            wanted = [self._wanted(ctx, node, source, owed) for source in node.inputs]
            dxs = node.layer.backward(ctx, weights, grads, dy, tapes.kept[node.name], wanted)
            for source, dx in zip(node.inputs, dxs, strict=True):
                if source in self._needing and dx is not None:
                    owed[source] = self._added(ctx, owed.get(source), dx)
            if ctx.space.planning:
                ctx.space.keep(chain(owed.values(), self._still_kept(ctx, tapes, node)))
        return owed

    def _wanted(self, ctx: Pass, node: Node, source: str, owed: Views) -> Wanted:
        """Whether the gradient of a layer's input is needed; the array to add it to, where the layer can do so."""
        if source not in self._needing:
            return False
        return owed.get(source, True) if node.layer.adds and ctx.ops.fused else True

    def _still_kept(self, ctx: Pass, tapes: Tapes, node: Node) -> Iterator[Array]:
        """The arrays that backward needs for the layers before this one."""
        position = self._positions[node.name]
        if ctx.recompute:  # blocks before this one run again, from the outputs that are left
            yield from arrays_in(y for name, y in tapes.outputs.items() if self._positions.get(name, -1) < position)
        for before in self.plan[:position]:
            yield from arrays_in(tapes.kept.get(before.name))

    @staticmethod
    def _added(ctx: Pass, total: Array | None, dx: Array) -> Array:
        """The gradient of an output with another reader. Each array belongs to its receiver, so it is added in place,
        unless the layer has done so."""
        if total is None or dx is total:
            return dx
        ctx.ops.add(total, dx, total)
        return total

    def first_nonfinite(self, ctx: Pass, tapes: Tapes) -> str | None:
        """Return the first layer, in order, whose output has a NaN or an infinity."""
        for node in self.plan:
            if node.name in tapes.outputs and ctx.ops.nonfinite(in_memory(ctx, tapes.outputs[node.name])):
                return node.name
        return None

    def describe(self, batch: int = 1, dtype: str = "float32") -> list[describe.LayerRow]:
        """Return one row a layer of the model file, for ``models show``."""
        folded = {name: node.name for node in self.plan for name in node.folded}
        item_bytes = describe.ITEM_BYTES[dtype]
        return [describe.row(node, self.shapes, folded.get(node.name), batch, item_bytes) for node in self.nodes]


def in_memory(ctx: Pass, output: Array | Measured | Normalised) -> Array:
    """A layer's output as an array."""
    if isinstance(output, Normalised):
        y = ctx.space(f"{INPUT}.normalised", output.shape)
        ctx.ops.normalise(output.x, output.statistics, y, relu=output.relu)
        return y
    return output.x if isinstance(output, Measured) else output


def _kind(ctx: Pass) -> str:
    return TRAINING if ctx.training else EVALUATION


def arrays_in(tape: Any) -> Iterator[Array]:
    """The arrays of a tape, which may be a tuple of tapes."""
    if hasattr(tape, "reshape"):
        yield tape
    elif isinstance(tape, Iterable) and not isinstance(tape, str):
        for each in tape:
            yield from arrays_in(each)
