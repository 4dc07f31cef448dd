"""Segments of a pass: sequences of layers whose operations a device captures once and replays.

::
    forward    conv1 relu1 pool1 | conv2 … fc │ loss          | before a layer whose weights may not have arrived
    backward   fc … conv2 | pool1 relu1 conv1                 | after a layer whose gradient starts an exchange

Span callbacks (:meth:`Exchange.before_read`, :meth:`Exchange.grad_ready`) fire once per segment: reads before it, final
gradients after it. Without capture a segment is one layer."""

from collections.abc import Collection, Sequence

from ringtrain.nn.base import Pass
from ringtrain.nn.graph_checks import Node

CaptureSegment = tuple[Node, ...]


def is_recordable(ctx: Pass, segment: CaptureSegment) -> bool:
    """Return whether the operations of a segment are the same whenever its key is."""
    return ctx.recorded and ctx.ops.records and all(node.layer.repeats(ctx) for node in segment)


def layers_of(spans: Collection[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in spans}


def cut(
    ctx: Pass, nodes: Sequence[Node], before: Collection[str] = (), after: Collection[str] = ()
) -> list[CaptureSegment]:
    """Cut a pass into segments: one begins at each layer of the spans ``before``, one ends after each of ``after``."""
    starts, ends, segments = layers_of(before), layers_of(after), list[CaptureSegment]()
    for node in nodes:
        last = segments[-1][-1] if segments else None
        if last is None or node.name in starts or last.name in ends or not is_recordable(ctx, (last, node)):
            segments.append((node,))
        else:
            segments[-1] = (*segments[-1], node)
    return segments
