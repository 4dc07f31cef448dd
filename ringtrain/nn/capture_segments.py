"""A pass cut into segments: runs of layers whose operations a device records once and does again.

::
    forward    conv1 relu1 pool1 | conv2 … fc │ loss          | before a layer whose weights may have to be waited for
    backward   fc … conv2 | pool1 relu1 conv1                 | after a layer by whose gradient an exchange starts

Who is told of spans (:meth:`Exchange.need`, :meth:`Exchange.ready`) is told before a segment of all that it reads, and
after it of all that it has made final. Where nothing is recorded a segment is one layer.
"""

from collections.abc import Callable, Collection, Sequence

from ringtrain.nn.base import Pass
from ringtrain.nn.graph_checks import Node

CaptureSegment = tuple[Node, ...]


def is_recordable(ctx: Pass, segment: CaptureSegment) -> bool:
    """Whether the operations of a segment are the same whenever its key is."""
    return ctx.recorded and ctx.ops.records and all(node.layer.repeats(ctx) for node in segment)


def forward_segments(ctx: Pass, nodes: Sequence[Node]) -> list[CaptureSegment]:
    """Those of a forward pass, each of which begins where one must: at a layer that has to wait for weights."""
    starts = layers_of(ctx.waits)
    return _joined(ctx, nodes, lambda before, node: node.name not in starts)


def backward_segments(ctx: Pass, nodes: Sequence[Node]) -> list[CaptureSegment]:
    """Those of a backward pass, each of which ends where one must: behind a layer whose gradient sets something off."""
    ends = layers_of(ctx.cuts)
    return _joined(ctx, nodes, lambda before, node: before.name not in ends)


def layers_of(spans: Collection[str]) -> set[str]:
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
