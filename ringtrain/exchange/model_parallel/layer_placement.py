"""The layers and columns of each rank, in a network divided among ranks: a table that all ranks make alike.

ranks 0 to 3    conv1 … flat            the same layers on each, with a part of the batch
rank 4          columns 0:2048 of fc6   fully connected layers in parts, one after another: the ranks of a part divide
rank 5          columns 2048:4096       the columns of each of its layers, for the whole batch
rank 6          fc7 … fc8               one rank has them all

Parts and their ranks are chosen so that the most expensive rank is as cheap as possible, by :func:`rank_cost`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from math import inf

from ringtrain.collectives.schedule import bounds
from ringtrain.errors import ConfigError
from ringtrain.exchange.model_parallel.hybrid import activations_sent
from ringtrain.exchange.model_parallel.hybrid_layers import trailing
from ringtrain.humanize import format_bytes, plural
from ringtrain.memory.arena import lay_out
from ringtrain.memory.spans import Span
from ringtrain.nn import subgraphs
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import input_shapes
from ringtrain.nn.layers import Linear
from ringtrain.nn.shapes import element_count
from ringtrain.transport.waiting import peers

PASSES = 3  # forward, and backward the gradients of inputs and of weights: each has about the arithmetic of forward
# Arithmetic that takes as long as sending one number: a core of 30 GFLOP/s at 1 Gbit/s does 960 operations in the time
# of a float32, a GPU of 20 TFLOP/s at 80 GB/s does 1000.
EXCHANGE_FLOPS = 1000

Part = tuple[int, int, int]  # layers start:stop of the plan, and how many ranks divide their columns


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """These ranks hold layers ``start:stop`` of the plan. Ranks of the first placement hold all columns, and a part of
    the batch each; ranks of another divide the columns of each layer: ``bounds(columns, len(ranks))``."""

    ranks: tuple[int, ...]
    start: int
    stop: int


def place_layers(graph: Graph, size: int, fc_ranks: int) -> list[LayerPlacement]:
    """Give the last ``fc_ranks`` of ``size`` ranks the fully connected layers, divided by their cost. Raises
    ConfigError for too few ranks, layers or columns."""
    starts = subgraphs.fc_starts(graph)
    check_ranks(size, fc_ranks)
    _check_layers(graph, starts, fc_ranks)
    costs = {
        (start, stop): [
            rank_cost(graph, start, stop, ranks)
            for ranks in range(1, min(most_ranks(graph, start, stop), fc_ranks) + 1)
        ]
        for start, stop in combinations((*starts, len(graph.plan)), 2)
    }
    first = size - fc_ranks
    placements = [LayerPlacement(tuple(range(first)), 0, starts[0])]
    for start, stop, ranks in cheapest_parts(costs, fc_ranks):
        placements.append(LayerPlacement(tuple(range(first, first + ranks)), start, stop))
        first += ranks
    return placements


class PlacementTable:
    """The placements, as ``rank`` sees them. Raises ConfigError as :func:`place_layers`.

    graph, spans: of the whole network
    index:        of this rank's placement: 0 in front
    part:         this rank's layers, with all columns
    """

    def __init__(self, graph: Graph, size: int, fc_ranks: int, rank: int):
        self.graph, self.spans = graph, lay_out(graph.parameters())
        self.placements = place_layers(graph, size, fc_ranks)
        self.index = next(i for i, placement in enumerate(self.placements) if rank in placement.ranks)
        placement = self.placements[self.index]
        self.part = subgraphs.subgraph(graph, placement.start, placement.stop)

    @property
    def ranks(self) -> Sequence[int]:
        """This rank and those that share its layers."""
        return self.placements[self.index].ranks

    @property
    def behind(self) -> Sequence[int]:
        """The next group of ranks; none if this one has the loss."""
        return self.placements[self.index + 1].ranks if self.index + 1 < len(self.placements) else ()

    def spans_of(self, placement: LayerPlacement) -> list[Span]:
        """Return the spans of these layers."""
        layers = {node.name for node in self.graph.plan[placement.start : placement.stop]}
        return [span for span in self.spans if span.name.rpartition(".")[0] in layers]

    def before(self, sender: int) -> Sequence[int]:
        """Return the ranks that send to this one the messages of rank ``sender`` in front."""
        return (sender,) if self.index == 1 else self.placements[self.index - 1].ranks

    def describe(self, itemsize: int) -> list[str]:
        """Return the lines of the table."""
        return [line for placement in self.placements for line in describe(placement, self.graph, itemsize)]


def check_ranks(size: int, fc_ranks: int) -> None:
    """Raises ConfigError unless ranks are left for the other layers."""
    if fc_ranks >= size:
        raise ConfigError(
            f"--fc-ranks {fc_ranks} of {plural(size, 'rank')} leaves none for the other layers: start at least "
            f"{fc_ranks + 1} ranks, or give --fc data"
        )


def _check_layers(graph: Graph, starts: list[int], fc_ranks: int) -> None:
    if not starts:
        raise ConfigError(
            "--fc pipeline gives ranks of their own to fully connected layers, and the model does not end in any: "
            "give --fc data"
        )
    if not any(node.layer.parameters([graph.shapes[s] for s in node.inputs]) for node in graph.plan[: starts[0]]):
        raise ConfigError(
            f"--fc pipeline leaves the layers before {graph.plan[starts[0]].name!r} to the other ranks, and these "
            "layers have no parameters: give --fc data"
        )
    smallest = list(pairwise((*starts, len(graph.plan))))
    most = sum(most_ranks(graph, start, stop) for start, stop in smallest)
    if fc_ranks > most:
        parts = ", ".join(_limit(graph, start, stop) for start, stop in smallest)
        raise ConfigError(
            f"--fc-ranks {fc_ranks} is more than the model's fully connected layers can be divided among ({parts}): "
            f"give at most {most}"
        )


def _limit(graph: Graph, start: int, stop: int) -> str:
    if _divisible(graph, start, stop):
        return f"{graph.plan[start].name}: {plural(most_ranks(graph, start, stop), 'column')}"
    return f"{_span(graph, start, stop)}: 1 rank"


def _divisible(graph: Graph, start: int, stop: int) -> bool:
    return trailing(graph.plan[start:stop], graph.shapes) == 0


def _units(graph: Graph, start: int, stop: int) -> dict[str, int]:
    """Return the columns of each fully connected layer by its name."""
    return {node.name: node.layer.units for node in graph.plan[start:stop] if isinstance(node.layer, Linear)}


def most_ranks(graph: Graph, start: int, stop: int) -> int:
    """Return how many ranks can divide these layers, each with a column of every fully connected one. It is 1 if
    hybrid does not divide one of these layers, or if there are branches."""
    return min(_units(graph, start, stop).values()) if _divisible(graph, start, stop) else 1


def rank_cost(graph: Graph, start: int, stop: int, ranks: int) -> float:
    """Return what an example costs each of ``ranks`` that divide these layers, in multiplications and additions: their
    arithmetic, and the numbers that they send one another."""
    (features,) = graph.shapes[graph.plan[start].inputs[0]]
    sent = activations_sent(features, _units(graph, start, stop).values(), batch=1, ranks=ranks)
    return PASSES * subgraphs.subgraph_flops(graph, start, stop) / ranks + EXCHANGE_FLOPS * sent


def cheapest_parts(costs: Mapping[tuple[int, int], Sequence[float]], ranks: int) -> list[Part]:
    """Return the parts, in order, that divide all layers among exactly this many ranks, so that the most expensive rank
    is as cheap as possible; of several such divisions one whose ranks cost least in total, then one of few parts.

    costs: of each rank, if 1, 2, … ranks divide layers start:stop, by (start, stop)
    """
    first, end = min(start for start, _ in costs), max(stop for _, stop in costs)

    def choices(start: int, left: int) -> Iterator[tuple[int, int, float]]:
        """Yield the possible parts at ``start``: where each stops, its ranks, and the cost of each of them."""
        for (begin, stop), by_ranks in costs.items():
            if begin == start:
                for count, cost in enumerate(by_ranks[:left], 1):
                    if stop < end or count == left:
                        yield stop, count, cost

    @cache
    def most_expensive(start: int, left: int) -> float:
        if start == end:
            return 0.0
        costs_by_choice = (max(cost, most_expensive(stop, left - count)) for stop, count, cost in choices(start, left))
        return min(costs_by_choice, default=inf)

    # The total is a search of its own: behind a dear part, cheap parts may be exchanged for others of a lower total.
    limit = most_expensive(first, ranks)

    @cache
    def least_total(start: int, left: int) -> tuple[float, int, tuple[Part, ...]]:
        if start == end:
            return 0.0, 0, ()
        divisions = []
        for stop, count, cost in choices(start, left):
            if cost <= limit:
                total, parts, rest = least_total(stop, left - count)
                divisions.append((count * cost + total, parts + 1, ((start, stop, count), *rest)))
        return min(divisions, default=(inf, 0, ()))

    return list(least_total(first, ranks)[2])


# ── the table, for people ─────────────────────────────────────────────────────────────────────────────────────
def describe(placement: LayerPlacement, graph: Graph, itemsize: int) -> list[str]:
    """Return a line for each rank that has columns of its own, or one for ranks that hold the same: layers or columns,
    their arithmetic forward and their bytes, and the bytes that travel on from this part."""
    ranks, start, stop = placement.ranks, placement.start, placement.stop
    crossing = subgraphs.crossing_output(graph, stop) if stop < len(graph.plan) else None
    nbytes = element_count(graph.shapes[crossing]) * itemsize if crossing else 0
    onward = f"{format_bytes(nbytes)} an example on" if crossing else "the loss"
    among = len(ranks) if start else 1  # the ranks in front do not divide columns
    lines = []
    for index in range(among):
        flops, elements = _share(graph, start, stop, index, among)
        layers = _span(graph, start, stop) if among == 1 else _columns(graph, start, stop, index, among)
        lines.append(
            f"{peers(ranks if among == 1 else ranks[index : index + 1])}: {layers}, {_say_flops(flops)} an example, "
            f"{format_bytes(elements * itemsize)} of weights, {onward}"
        )
    return lines


def _span(graph: Graph, start: int, stop: int) -> str:
    last = graph.plan[stop - 1]
    return " to ".join(dict.fromkeys([graph.plan[start].name, last.last]))


def _columns(graph: Graph, start: int, stop: int, index: int, among: int) -> str:
    """Return the columns of rank ``index`` of the ``among`` ranks that divide a part."""
    edges = {name: bounds(units, among)[index : index + 2] for name, units in _units(graph, start, stop).items()}
    columns = (f"{a}:{b} of {name}" for name, (a, b) in edges.items())
    return f"columns {', '.join(columns)}"


def _share(graph: Graph, start: int, stop: int, index: int, among: int) -> tuple[int, int]:
    """Return the multiplications and additions of forward, and the elements of parameters, of the rank at this index.
    Layers between fully connected ones are not divided."""
    flops = elements = 0
    for node in graph.plan[start:stop]:
        inputs, share, units = input_shapes(node, graph.shapes), 1, 1
        if isinstance(node.layer, Linear):
            units = node.layer.units
            a, b = bounds(units, among)[index : index + 2]
            share = b - a
        flops += node.layer.flops(inputs) * share // units
        elements += sum(element_count(parameter.shape) for parameter in node.layer.parameters(inputs)) * share // units
    return flops, elements


def _say_flops(flops: int) -> str:
    """75,500,000 → "75.5 MFLOP"."""
    for unit, factor in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= factor:
            return f"{flops / factor:.3g} {unit}"
    return f"{flops} FLOP"
