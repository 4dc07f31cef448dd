"""Calibration of this machine's links and memory, in the same run as the measurements that it judges.

alpha   seconds that the smallest message takes, one way: half a ping-pong
beta    seconds a byte of one rank's link, one direction; given as its inverse, a rate. Measured in three ways:
        *pair* (one pair, one direction), *both* (one pair, both directions at once), *busy* (every rank sends and
        receives)
gamma   seconds a byte to add one buffer into another, on all ranks at once
beside  seconds a byte of host memory that travels in both directions between nodes while all ranks compute
core    the part of these by which computing takes longer: what the MPI and the system do for such a byte

Links inside a node and between nodes are different classes, and each existing class is measured. A rate is the best
over several message sizes, since it must bound all sizes. Inside a node it is a rate of single messages; between
nodes of long streams (:func:`ringtrain.bench.measure.round_trips.sustained_s`), because a network takes the first bytes
after a pause faster than it can continue. The other ranks wait in a barrier meanwhile, which with more ranks than cores
costs the pair some of its time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.bench.measure.buffers import Buffers, HostBuffers
from ringtrain.bench.measure.round_trips import (
    beside_computing_s,
    message_buffers,
    ping_pong,
    repeated,
    shift,
    slowest_s,
    stream,
    sustained_s,
)
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.collectives.topology import Topology
from ringtrain.transport.base import Transport

ALPHA_BYTES = 8
RATE_BYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
STREAM_BYTES = (1 << 18, 1 << 20)  # of a message in a stream
GAMMA_BYTES = 1 << 18  # a part that stays in cache, as a segment that has just arrived does
REPEATS = 15
ADDITIONS = 40  # of a piece of work, beside which messages travel: about a millisecond
BESIDE_S = 0.1  # of such messages
ALPHA_ROUNDS = 50  # ping-pongs in one sample: a single one is no longer than the start's own skew
INSIDE, BETWEEN = "inside a node", "between nodes"


@dataclass(frozen=True, slots=True)
class LinkClass:
    """One class of links. ``busy_bytes_per_s`` is the rate of one rank while all send."""

    alpha_s: float
    pair_bytes_per_s: float
    both_bytes_per_s: float
    busy_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured machine.

    links:             by class; empty for one rank
    gamma_s_per_byte:  of the addition
    sharing:           largest number of streams on a node's link when all links between nodes are busy
    core_s_per_byte:   of a byte sent and one received between nodes; 0 on one node, and of devices
    beside_s_per_byte: likewise
    """

    links: dict[str, LinkClass]
    gamma_s_per_byte: float
    sharing: int
    core_s_per_byte: float = 0.0
    beside_s_per_byte: float = 0.0

    @property
    def node_bytes_per_s(self) -> float:
        """Return the rate of a node's link in one direction: the highest that any pattern reached. For several
        nodes.
        """
        link = self.links[BETWEEN]
        return max(link.pair_bytes_per_s, link.both_bytes_per_s, link.busy_bytes_per_s * self.sharing)


def pair_of(topology: Topology, kind: str) -> tuple[int, int] | None:
    """Return two ranks with such a link between them."""
    if kind == INSIDE:
        return next(((ranks[0], ranks[1]) for ranks in topology.nodes if len(ranks) > 1), None)
    return (topology.nodes[0][0], topology.nodes[1][0]) if len(topology.nodes) > 1 else None


def neighbours(topology: Topology, kind: str, rank: int) -> tuple[int | None, int | None]:
    """Return the rank that a rank sends to, and the rank that it receives from, when all links of a class are busy."""
    node = next(ranks for ranks in topology.nodes if rank in ranks)
    local_rank = node.index(rank)
    if kind == INSIDE:
        return _around(node, local_rank)
    # Ranks of equal place make a circle through the nodes that have so many.
    circle = tuple(ranks[local_rank] for ranks in topology.nodes if len(ranks) > local_rank)
    return _around(circle, circle.index(rank))


def sharing(topology: Topology) -> int:
    """Return the largest number of rings of :func:`neighbours` between nodes that go through one node; 1 for one
    node.
    """
    return sorted(topology.counts)[-2] if len(topology.nodes) > 1 else 1


def _around(circle: tuple[int, ...], index: int) -> tuple[int | None, int | None]:
    if len(circle) == 1:
        return None, None
    return circle[(index + 1) % len(circle)], circle[index - 1]


def calibrate(transport: Transport, tag: int, buffers: Buffers) -> Calibration:
    """Return the calibration. Collective; the same on all ranks. ``transport``: of one of the ways of ``buffers``,
    whose memory is moved, and added as float32.
    """
    topology = topology_of(transport)
    memory = message_buffers(buffers, max(*RATE_BYTES, *STREAM_BYTES))
    rates = {INSIDE: _message_rates, BETWEEN: _stream_rates}
    links = {
        kind: LinkClass(_alpha_s(transport, pair, memory, tag), *rates[kind](transport, pair, topology, memory, tag))
        for kind in (INSIDE, BETWEEN)
        if (pair := pair_of(topology, kind))
    }
    beside = BETWEEN in links and isinstance(buffers, HostBuffers)
    times = _beside_computing(transport, topology, links[BETWEEN], memory, buffers, tag) if beside else (0.0, 0.0)
    gamma_s_per_byte = slowest_s(transport, _addition(buffers, memory), REPEATS) / GAMMA_BYTES
    return Calibration(links, gamma_s_per_byte, sharing(topology), *times)


def _alpha_s(transport: Transport, pair: tuple[int, int], memory: tuple, tag: int) -> float:
    out, into = (span[:ALPHA_BYTES] for span in memory)
    turns = ping_pong(transport, *pair, out, into, tag)
    return slowest_s(transport, repeated(turns, ALPHA_ROUNDS), REPEATS) / ALPHA_ROUNDS / 2


def _message_rates(
    transport: Transport, pair: tuple[int, int], topology: Topology, memory: tuple, tag: int
) -> list[float]:
    """Return the rates of a pair, of both directions, and of all ranks at once, inside nodes: the best over message
    sizes.
    """
    peer = dict((pair, pair[::-1])).get(transport.rank)
    prepared = (
        (2, lambda out, into: ping_pong(transport, *pair, out, into, tag)),  # two messages that follow one another
        (1, lambda out, into: shift(transport, peer, peer, out, into, tag)),
        (1, lambda out, into: shift(transport, *neighbours(topology, INSIDE, transport.rank), out, into, tag)),
    )

    def rate(moves: int, prepare: Callable, nbytes: int) -> float:
        return moves * nbytes / slowest_s(transport, prepare(*(span[:nbytes] for span in memory)), REPEATS)

    return [max(rate(*how, nbytes) for nbytes in RATE_BYTES) for how in prepared]


def _stream_rates(
    transport: Transport, pair: tuple[int, int], topology: Topology, memory: tuple, tag: int
) -> list[float]:
    """Return the same rates between nodes, of streams."""
    first, second = pair
    one_way = {first: (second, None), second: (None, first)}.get(transport.rank, (None, None))
    peer = {first: second, second: first}.get(transport.rank)
    ends = one_way, (peer, peer), neighbours(topology, BETWEEN, transport.rank)

    def rate(to: int | None, source: int | None, nbytes: int) -> float:
        out, into = (span[:nbytes] for span in memory)
        return nbytes / sustained_s(transport, stream(transport, to, source, out, into, tag))

    return [max(rate(*peers, nbytes) for nbytes in STREAM_BYTES) for peers in ends]


def _beside_computing(
    transport: Transport, topology: Topology, link: LinkClass, memory: tuple, buffers: Buffers, tag: int
) -> tuple[float, float]:
    """Return (core, beside), in seconds a byte."""
    nbytes = max(STREAM_BYTES)
    out, into = (span[:nbytes] for span in memory)
    work = repeated(_addition(buffers, message_buffers(buffers, GAMMA_BYTES)), ADDITIONS)
    count = math.ceil(BESIDE_S * link.busy_bytes_per_s / nbytes)
    ends = neighbours(topology, BETWEEN, transport.rank)
    core_s, beside_s = beside_computing_s(transport, *ends, out, into, tag, count, work)
    return core_s / nbytes, beside_s / nbytes


def _addition(buffers: Buffers, memory: tuple) -> Callable[[], None]:
    """Return a function that adds a buffer into another."""
    numbers = TYPES["float32"]
    combine, device = buffers.combining(numbers, "sum")
    a, b = (buffers.typed(span, GAMMA_BYTES, numbers) for span in memory)

    def add() -> None:
        combine(a, b, b)
        device.mark().wait()

    return add
