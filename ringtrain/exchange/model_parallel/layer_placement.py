"""The layers of each rank, in a network divided among ranks: a table that all ranks make alike.

ranks 0 to 3    conv1 … flat     the same layers on each, with a part of the batch
rank 4          fc6 … drop7      one rank each, the whole batch
rank 5          fc8
"""

from dataclasses import dataclass
from itertools import pairwise

from ringtrain.errors import ConfigError
from ringtrain.exchange import texts
from ringtrain.humanize import format_bytes, plural
from ringtrain.nn import subgraphs
from ringtrain.nn.graph import Graph
from ringtrain.nn.shapes import element_count
from ringtrain.transport.waiting import peers


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """These ranks hold layers ``start:stop`` of the plan."""

    ranks: tuple[int, ...]
    start: int
    stop: int


def place_layers(graph: Graph, size: int, fc_ranks: int) -> list[LayerPlacement]:
    """Give the last ``fc_ranks`` of ``size`` ranks the fully connected layers, divided by their arithmetic. Raises
    ConfigError for too few ranks or layers."""
    starts = subgraphs.fc_starts(graph)
    _check_layers(graph, starts, fc_ranks)
    if fc_ranks >= size:
        raise ConfigError(texts.NO_OTHER_RANKS(fc=fc_ranks, ranks=plural(size, "rank"), least=fc_ranks + 1))
    edges = [0, *subgraphs.balanced_starts(graph, starts, fc_ranks), len(graph.plan)]
    front = size - fc_ranks
    holders = [tuple(range(front)), *((rank,) for rank in range(front, size))]
    return [LayerPlacement(ranks, a, b) for ranks, (a, b) in zip(holders, pairwise(edges), strict=True)]


def _check_layers(graph: Graph, starts: list[int], fc_ranks: int) -> None:
    if not starts:
        raise ConfigError(texts.NO_FC_LAYERS)
    if not any(node.layer.parameters([graph.shapes[s] for s in node.inputs]) for node in graph.plan[: starts[0]]):
        raise ConfigError(texts.NOTHING_BEFORE(layer=graph.plan[starts[0]].name))
    if fc_ranks > len(starts):
        names = ", ".join(graph.plan[place].name for place in starts)
        raise ConfigError(texts.MORE_THAN_LAYERS(fc=fc_ranks, layers=names, most=len(starts)))


def describe(placement: LayerPlacement, graph: Graph, itemsize: int) -> str:
    """Return a line for one part: its ranks, its layers, their cost, and the bytes that travel on from it."""
    start, stop = placement.start, placement.stop
    last, shapes = graph.plan[stop - 1], graph.shapes
    layers = " to ".join(dict.fromkeys([graph.plan[start].name, last.folded_relu or last.name]))
    parameters = subgraphs.subgraph(graph, start, stop).parameters()
    crossing = subgraphs.crossing_output(graph, stop) if stop < len(graph.plan) else None
    return texts.PART(
        ranks=peers(placement.ranks),
        layers=layers,
        flops=_say_flops(subgraphs.subgraph_flops(graph, start, stop)),
        weights=format_bytes(sum(element_count(parameter.shape) for _, parameter in parameters) * itemsize),
        onward=texts.AN_EXAMPLE_ON(nbytes=format_bytes(element_count(shapes[crossing]) * itemsize))
        if crossing
        else texts.THE_LOSS(),
    )


def _say_flops(flops: int) -> str:
    """75,500,000 → "75.5 MFLOP"."""
    for unit, factor in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= factor:
            return f"{flops / factor:.3g} {unit}"
    return f"{flops} FLOP"
