"""Segments of a pass: sequences of layers whose operations a device captures once and replays.

::
    forward    conv1 relu1 pool1 | conv2 … fc │ loss          | before a layer whose weights may not have arrived
    backward   fc … conv2 | pool1 relu1 conv1                 | after a layer whose gradient starts an exchange

Span callbacks (:meth:`Exchange.need`, :meth:`Exchange.ready`) fire once per segment: reads before it, final gradients
after it. Without capture a segment is one layer.
"""

from collections.abc import Callable, Collection, Sequence

from ringtrain.nn.base import Pass
from ringtrain.nn.graph_checks import Node

CaptureSegment = tuple[Node, ...]


def is_recordable(ctx: Pass, segment: CaptureSegment) -> bool:
    """Return whether the operations of a segment are the same whenever its key is."""
    return ctx.recorded and ctx.ops.records and all(node.layer.repeats(ctx) for node in segment)


def forward_segments(ctx: Pass, nodes: Sequence[Node]) -> list[CaptureSegment]:
    """Cut a forward pass into segments; one begins at each layer that waits for weights."""
    starts = layers_of(ctx.waits)
    return _joined(ctx, nodes, lambda before, node: node.name not in starts)


def backward_segments(ctx: Pass, nodes: Sequence[Node]) -> list[CaptureSegment]:
    """Cut a backward pass into segments; one ends after each layer whose gradient starts an exchange."""
    ends = layers_of(ctx.cuts)
    return _joined(ctx, nodes, lambda before, node: before.name not in ends)


def layers_of(spans: Collection[str]) -> set[str]:
    """Return the names of the layers of these spans."""
    return {name.rpartition(".")[0] for name in spans}


def _joined(ctx: Pass, nodes: Sequence[Node], may_follow: Callable[[Node, Node], bool]) -> list[CaptureSegment]:
    segments: list[CaptureSegment] = []
    for node in nodes:
        before = segments[-1][-1] if segments else None
        if before is not None and is_recordable(ctx, (before, node)) and may_follow(before, node):
            segments[-1] = (*segments[-1], node)
        else:
            segments.append((node,))
    return segments
