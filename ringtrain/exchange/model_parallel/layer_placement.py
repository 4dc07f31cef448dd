"""Which rank holds which layers, where a network is divided among ranks: a table that all ranks make alike.

ranks 0 to 3    conv1 … flat     the same layers on each, with a part of the batch
rank 4          fc6 … drop7      one rank each, the whole batch
rank 5          fc8
"""

from collections.abc import Sequence
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
    """``ranks`` hold layers ``start:stop`` of the plan."""

    ranks: tuple[int, ...]
    start: int
    stop: int


def make_routing(graph: Graph, size: int, fc_ranks: int) -> list[LayerPlacement]:
    """The last ``fc_ranks`` of ``size`` ranks hold the fully connected layers, divided by what they compute. Raises
    ConfigError where ranks or layers do not suffice."""
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


def check(routes: Sequence[LayerPlacement], graph: Graph, size: int) -> None:
    """Raises ConfigError unless every layer is on some rank and every rank has layers, once, in order, and all that one
    part hands to the next is one array."""
    place = 0
    for route in routes:
        if route.start > place:
            raise ConfigError(texts.LAYER_ON_NO_RANK(layer=graph.plan[place].name))
        if route.start < place or route.stop <= route.start:
            name = graph.plan[route.start].name
            raise ConfigError(texts.OUT_OF_ORDER(ranks=peers(route.ranks), layer=name))
        if route.start and subgraphs.crossing_output(graph, route.start) is None:
            raise ConfigError(texts.SEVERAL_ARRAYS(layer=graph.plan[route.start].name))
        place = route.stop
    if place != len(graph.plan):
        raise ConfigError(texts.ENDS_EARLY(stop=place, count=len(graph.plan)))
    _check_ranks(routes, size)


def _check_ranks(routes: Sequence[LayerPlacement], size: int) -> None:
    held = [rank for route in routes for rank in route.ranks]
    if held != list(range(size)):
        raise ConfigError(texts.NOT_EACH_ONCE(ranks=held, last=size - 1))
    for route in routes[1:]:
        if len(route.ranks) != 1:
            raise ConfigError(texts.SHARED_FC_PART(ranks=peers(route.ranks)))


def tell(routes: Sequence[LayerPlacement], graph: Graph, itemsize: int) -> list[str]:
    """A line for each part: who holds it, from which layer to which, what it costs and what travels on from it."""
    return [_line(route, graph, itemsize) for route in routes]


def _line(route: LayerPlacement, graph: Graph, itemsize: int) -> str:
    nodes = graph.plan[route.start : route.stop]
    names = [nodes[0].name, nodes[-1].folded_relu or nodes[-1].name]
    layers = " to ".join(dict.fromkeys(names))
    computed = _say_flops(subgraphs.subgraph_flops(graph, route.start, route.stop))
    weights = sum(
        element_count(parameter.shape)
        for _, parameter in subgraphs.subgraph(graph, route.start, route.stop).parameters()
    )
    onward = texts.THE_LOSS
    if route.stop < len(graph.plan):
        crossing = subgraphs.crossing_output(graph, route.stop)
        onward = texts.AN_EXAMPLE_ON(nbytes=format_bytes(element_count(graph.shapes[crossing]) * itemsize))
    held = format_bytes(weights * itemsize)
    return texts.PART(ranks=peers(route.ranks), layers=layers, flops=computed, weights=held, onward=onward)


def _say_flops(flops: int) -> str:
    """75,500,000 → "75.5 MFLOP"."""
    for unit, factor in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= factor:
            return f"{flops / factor:.3g} {unit}"
    return f"{flops} FLOP"
