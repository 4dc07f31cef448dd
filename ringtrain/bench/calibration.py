"""What this machine's links and memory can do, measured in the run that is judged by it.

alpha   seconds that the smallest message takes, one way: half a ping-pong
beta    seconds a byte of one rank's link, one direction; given as its inverse, a rate. Measured in three ways:
        *pair* (one pair in turns), *both* (one pair, both directions at once), *busy* (every rank sends and receives)
gamma   seconds a byte to add one buffer into another, on all ranks at once

Links inside a node and between nodes are different classes, and each is measured where there is one. A rate is the
best over several message sizes, as it must be in something that is to bound all sizes. The other ranks wait in a
barrier meanwhile, which with more ranks than cores costs the pair some of its time.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from ringtrain.bench.links import exchange, ping_pong, repeated, room, slowest_s
from ringtrain.transport.base import Transport

ALPHA_BYTES = 8
RATE_BYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
REPEATS = 15
ALPHA_ROUNDS = 50  # ping-pongs in one sample: a single one is no longer than the start's own skew
INSIDE, BETWEEN = "inside a node", "between nodes"


@dataclass(frozen=True, slots=True)
class Link:
    """One class of links. ``busy_bytes_per_s`` is what one rank sends while all do."""

    alpha_s: float
    pair_bytes_per_s: float
    both_bytes_per_s: float
    busy_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """links:         by class; empty for one rank
    gamma_s_per_byte: of the addition
    ranks_per_node:   the ranks that share a node's link, at most
    """

    links: dict[str, Link]
    gamma_s_per_byte: float
    ranks_per_node: int

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of every node, in rank order."""

    nodes: tuple[tuple[int, ...], ...]

    def pair(self, kind: str) -> tuple[int, int] | None:
        """Two ranks with such a link between them."""
        if kind == INSIDE:
            return next(((ranks[0], ranks[1]) for ranks in self.nodes if len(ranks) > 1), None)
        return (self.nodes[0][0], self.nodes[1][0]) if len(self.nodes) > 1 else None

    def neighbours(self, kind: str, rank: int) -> tuple[int | None, int | None]:
        """Whom a rank sends to, and who sends to it, when all links of a class are busy."""
        node = next(i for i, ranks in enumerate(self.nodes) if rank in ranks)
        place = self.nodes[node].index(rank)
        if kind == INSIDE:
            return _around(self.nodes[node], place)
        # Ranks of equal place make a circle through the nodes that have so many.
        circle = tuple(ranks[place] for ranks in self.nodes if len(ranks) > place)
        return _around(circle, circle.index(rank))


def _around(circle: tuple[int, ...], place: int) -> tuple[int | None, int | None]:
    if len(circle) == 1:
        return None, None
    return circle[(place + 1) % len(circle)], circle[place - 1]


def layout_of(transport: Transport) -> Layout:
    """Collective."""
    nodes = transport.gather_json(transport.node)
    return Layout(tuple(tuple(r for r, own in enumerate(nodes) if own == node) for node in range(transport.nodes)))


def calibrate(transport: Transport, tag: int, combine: Callable, dtype: np.dtype) -> Calibration:
    """Collective; the same on all ranks. ``combine(a, b, y)`` is the addition, on arrays of ``dtype``."""
    layout = layout_of(transport)
    out, into = room(transport, max(RATE_BYTES))
    kinds = [kind for kind in (INSIDE, BETWEEN) if layout.pair(kind)]
    links = {kind: _link(transport, layout, kind, out, into, tag) for kind in kinds}
    gamma = _gamma(transport, combine, out.view(dtype), into.view(dtype))
    return Calibration(links, gamma, max(map(len, layout.nodes)))


def _link(transport: Transport, layout: Layout, kind: str, out, into, tag: int) -> Link:
    first, second = layout.pair(kind)
    peer = {first: second, second: first}.get(transport.rank)
    to, source = layout.neighbours(kind, transport.rank)

    def turns(nbytes: int) -> Callable:
        return ping_pong(transport, first, second, out[:nbytes], into[:nbytes], tag)

    def both(nbytes: int) -> Callable:
        return exchange(transport, peer, peer, out[:nbytes], into[:nbytes], tag)

    def busy(nbytes: int) -> Callable:
        return exchange(transport, to, source, out[:nbytes], into[:nbytes], tag)

    return Link(
        alpha_s=slowest_s(transport, repeated(turns(ALPHA_BYTES), ALPHA_ROUNDS), REPEATS) / ALPHA_ROUNDS / 2,
        pair_bytes_per_s=_rate(transport, turns, moves=2),
        both_bytes_per_s=_rate(transport, both, moves=1),
        busy_bytes_per_s=_rate(transport, busy, moves=1),
    )


def _rate(transport: Transport, prepare: Callable, moves: int) -> float:
    """The best over message sizes, of ``moves`` messages that follow one another."""
    return max(moves * nbytes / slowest_s(transport, prepare(nbytes), REPEATS) for nbytes in RATE_BYTES)


def _gamma(transport: Transport, combine: Callable, a, b) -> float:
    # A part that stays in cache, as a segment that has just arrived does.
    count = (1 << 18) // a.dtype.itemsize
    a, b = a[:count], b[:count]
    return slowest_s(transport, lambda: combine(a, b, b), REPEATS) / (count * a.dtype.itemsize)
