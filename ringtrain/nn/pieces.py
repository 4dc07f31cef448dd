"""A pass cut into pieces: runs of layers whose operations a device records once and does again.

::
    forward    conv1 relu1 pool1 | conv2 … fc │ loss          | before a layer whose weights may have to be waited for
    backward   fc … conv2 | pool1 relu1 conv1                 | after a layer by whose gradient an exchange starts

Who is told of spans (:meth:`Exchange.need`, :meth:`Exchange.ready`) is told before a piece of all that it reads, and
after it of all that it has made final. Where nothing is recorded a piece is one layer.
"""

from collections.abc import Callable, Collection, Sequence

from ringtrain.nn.base import Pass
from ringtrain.nn.wiring import Node

Piece = tuple[Node, ...]


def recorded(ctx: Pass, piece: Piece) -> bool:
    """Whether the operations of a piece are the same whenever its key is."""
    return ctx.recorded and ctx.ops.records and all(node.layer.repeats(ctx) for node in piece)


def forward(ctx: Pass, nodes: Sequence[Node]) -> list[Piece]:
    """Those of a forward pass, each of which begins where one must: at a layer that has to wait for weights."""
    starts = layers_of(ctx.waits)
    return _joined(ctx, nodes, lambda before, node: node.name not in starts)


def backward(ctx: Pass, nodes: Sequence[Node]) -> list[Piece]:
    """Those of a backward pass, each of which ends where one must: behind a layer whose gradient sets something off."""
    ends = layers_of(ctx.cuts)
    return _joined(ctx, nodes, lambda before, node: before.name not in ends)


def layers_of(spans: Collection[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in spans}


def _joined(ctx: Pass, nodes: Sequence[Node], may_follow: Callable[[Node, Node], bool]) -> list[Piece]:
    pieces: list[Piece] = []
    for node in nodes:
        before = pieces[-1][-1] if pieces else None
        if before is not None and recorded(ctx, (before, node)) and may_follow(before, node):
            pieces[-1] = (*pieces[-1], node)
        else:
            pieces.append((node,))
    return pieces
