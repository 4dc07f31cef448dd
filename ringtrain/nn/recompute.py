"""Blocks of layers whose activations a pass drops, and computes again in backward.

A block ends where one output is read on, so that this output alone is kept. With about √L blocks of equal size, both
what is kept and what is computed again at a time are about √L of L activations. Source: Chen et al. 2016, "Training
deep nets with sublinear memory cost", section 4."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.nn.base import Pass, Shape
from ringtrain.nn.graph_checks import Node


@dataclass(frozen=True, slots=True)
class Block:
    """Layers that follow one another. ``recomputed``: whether only its output outlives its forward pass."""

    nodes: tuple[Node, ...]
    recomputed: bool = False

    @property
    def output(self) -> str:
        return self.nodes[-1].name


def make_blocks(ctx: Pass, nodes: Sequence[Node], shapes: dict[str, Shape]) -> list[Block]:
    """Cut layers into blocks. The last one is not recomputed: backward begins with it. Nor is one whose layers do not
    repeat: they exchange with other ranks. A block drops at least as much as it keeps."""
    ends = _possible_ends(nodes)
    sizes = [math.prod(shapes[node.name]) for node in nodes]
    each, blocks, start = sum(sizes) / math.sqrt(max(1, len(ends))), list[Block](), 0
    for i, kept in enumerate(sizes):
        size = sum(sizes[start : i + 1])
        if i + 1 == len(nodes) or (i in ends and size >= max(each, 2 * kept)):
            part = tuple(nodes[start : i + 1])
            blocks.append(Block(part, i + 1 < len(nodes) and all(node.layer.repeats(ctx) for node in part)))
            start = i + 1
    return blocks


def _possible_ends(nodes: Sequence[Node]) -> set[int]:
    """The places after which later layers read one output alone, which the layer at this place computes."""
    last = {node.name: i for i, node in enumerate(nodes)}  # the last reader of each output
    for i, node in enumerate(nodes):
        last.update({source: i for source in node.inputs if source in last})
    ends, reach = set[int](), 0
    for i, node in enumerate(nodes):
        if reach <= i:
            ends.add(i)
        reach = max(reach, last[node.name])
    return ends
