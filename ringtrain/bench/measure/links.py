"""Links and memory of this machine, measured in the same run as the all-reduces that they judge.

alpha   seconds that the smallest message takes, one way: half a ping-pong
beta    seconds a byte of one rank's link, one direction; given as its inverse, a rate. Measured in three ways:
        *pair* (one pair, one direction), *both* (one pair, both directions at once), *busy* (every rank sends and
        receives)
gamma   seconds a byte to add one buffer into another, on all ranks at once
beside  seconds a byte of host memory that travels in both directions between nodes while all ranks compute
core    the part of these by which computing takes longer: what the MPI and the system do for such a byte

Links inside a node and between nodes are different classes, and each existing class is measured. A rate is the best
over several message sizes, since it must bound all sizes. Inside a node it is a rate of single messages; between
nodes of long streams (:func:`sustained_s`), because a network takes the first bytes after a pause faster than it can
continue. The other ranks wait in a barrier meanwhile, which with more ranks than cores costs the pair some of its time.

A function that prepares messages is not collective; what it returns is, for the ranks of the messages.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.bench.measure.buffers import CPU, Buffers
from ringtrain.bench.measure.timing import timed
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.collectives.topology import Topology
from ringtrain.transport.base import Handle, Transport

DEADLINE_S = 120.0
WARM_UP = 2
ALPHA_BYTES = 8
ALPHA_ROUNDS = 50  # ping-pongs in one sample: a single one is no longer than the start's own skew
RATE_BYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
REPEATS = 15
WINDOW = 4  # messages of a stream under way at once, so that the link never waits for the next one
STREAM_BYTES = (1 << 18, 1 << 20)  # of a message in a stream
STREAM_S = 0.05  # least duration of a stream, so that its start is a small fraction of it
STREAM_REPEATS = 5
MOST_MESSAGES = 1 << 14
GAMMA_BYTES = 1 << 18  # a part that stays in cache, as a segment that has just arrived does
ADDITIONS = 40  # of a piece of work, beside which messages travel: about a millisecond
BESIDE_S = 0.1  # of such messages
BESIDE_REPEATS = 3
ALONE_PIECES = 50
PAIR_BYTES, PAIR_REPEATS = 1 << 22, 7  # well beyond a network's first burst
STANDS_OUT = 1.3  # times worse than the others' own pairs
INSIDE, BETWEEN = "inside a node", "between nodes"

Ends = tuple[int | None, int | None]  # the rank that a rank sends to, and the rank that it receives from


@dataclass(frozen=True, slots=True)
class LinkClass:
    """One class of links. ``busy_bytes_per_s`` is the rate of one rank while all send."""

    alpha_s: float
    pair_bytes_per_s: float
    both_bytes_per_s: float
    busy_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured machine."""

    links: dict[str, LinkClass]  # by class; empty for one rank
    gamma_s_per_byte: float  # of the addition
    sharing: int  # largest number of streams on a node's link when all links between nodes are busy
    core_s_per_byte: float = 0.0  # of a byte sent and one received between nodes; 0 on one node, and of devices
    beside_s_per_byte: float = 0.0  # likewise

    @property
    def node_bytes_per_s(self) -> float:
        """Return the rate of a node's link in one direction: the highest that any pattern reached. For several
        nodes.
        """
        link = self.links[BETWEEN]
        return max(link.pair_bytes_per_s, link.both_bytes_per_s, link.busy_bytes_per_s * self.sharing)


def calibrate(transport: Transport, tag: int, buffers: Buffers) -> Calibration:
    """Return the calibration. Collective; the same on all ranks. ``transport``: of one of the ways of ``buffers``,
    whose memory is moved, and added as float32.
    """
    topology = topology_of(transport)
    memory = touched_pair(buffers, max(*RATE_BYTES, *STREAM_BYTES))
    links = {
        kind: LinkClass(
            _latency_s(transport, pair, memory, tag, REPEATS), *_rates(transport, kind, pair, topology, memory, tag)
        )
        for kind in (INSIDE, BETWEEN)
        if (pair := pair_of(topology, kind))
    }
    times = (0.0, 0.0)
    if BETWEEN in links and buffers.device == CPU:
        nbytes = max(STREAM_BYTES)
        work = repeated(_addition(buffers, touched_pair(buffers, GAMMA_BYTES)), ADDITIONS)
        count = math.ceil(BESIDE_S * links[BETWEEN].busy_bytes_per_s / nbytes)
        handles = _handles(transport, neighbours(topology, BETWEEN, transport.rank), _cut(memory, nbytes), tag, WINDOW)
        core_s, beside_s = beside_computing_s(transport, handles, count, work)
        times = core_s / nbytes, beside_s / nbytes
    gamma_s_per_byte = slowest_s(transport, _addition(buffers, memory), REPEATS) / GAMMA_BYTES
    return Calibration(links, gamma_s_per_byte, sharing(topology), *times)


# ── who sends to whom ─────────────────────────────────────────────────────────────────────────────────────────────────
def pair_of(topology: Topology, kind: str) -> tuple[int, int] | None:
    """Return two ranks with such a link between them."""
    if kind == INSIDE:
        return next(((ranks[0], ranks[1]) for ranks in topology.nodes if len(ranks) > 1), None)
    return (topology.nodes[0][0], topology.nodes[1][0]) if len(topology.nodes) > 1 else None


def neighbours(topology: Topology, kind: str, rank: int) -> Ends:
    """Return the ends of a rank when all links of a class are busy."""
    circle = next(ranks for ranks in topology.nodes if rank in ranks)
    if kind == BETWEEN:  # ranks of equal place make a circle through the nodes that have so many
        place = circle.index(rank)
        circle = tuple(ranks[place] for ranks in topology.nodes if len(ranks) > place)
    if len(circle) == 1:
        return None, None
    index = circle.index(rank)
    return circle[(index + 1) % len(circle)], circle[index - 1]


def sharing(topology: Topology) -> int:
    """Return the largest number of rings of :func:`neighbours` between nodes that go through one node; 1 for one
    node.
    """
    return sorted(topology.counts)[-2] if len(topology.nodes) > 1 else 1


# ── latency and rates ─────────────────────────────────────────────────────────────────────────────────────────────────
def touched_pair(buffers: Buffers, nbytes: int) -> tuple:
    """Return two buffers of bytes, to send from and to receive into, whose pages have been touched."""
    pair = buffers.allocate(nbytes), buffers.allocate(nbytes)
    for span in pair:
        buffers.clear(span)
    return pair


def _cut(memory: tuple, nbytes: int) -> tuple:
    return tuple(span[:nbytes] for span in memory)


def _latency_s(transport: Transport, pair: tuple[int, int], memory: tuple, tag: int, repeats: int) -> float:
    turns = repeated(ping_pong(transport, pair, _cut(memory, ALPHA_BYTES), tag), ALPHA_ROUNDS)
    return slowest_s(transport, turns, repeats) / ALPHA_ROUNDS / 2


def _rates(
    transport: Transport, kind: str, pair: tuple[int, int], topology: Topology, memory: tuple, tag: int
) -> list[float]:
    """Return the rates of a pair, of both directions, and of all ranks at once: each the best over message sizes."""
    (first, second), rank = pair, transport.rank
    peer = {first: second, second: first}.get(rank)
    both, busy = (peer, peer), neighbours(topology, kind, rank)

    def streamed_s(ends: Ends, nbytes: int) -> float:
        return sustained_s(transport, stream(transport, ends, _cut(memory, nbytes), tag))

    def shifted_s(ends: Ends, nbytes: int) -> float:
        shift = partial(stream(transport, ends, _cut(memory, nbytes), tag, window=1), 1)
        return slowest_s(transport, shift, REPEATS)

    def turn_s(nbytes: int) -> float:  # half of two messages that follow one another
        return slowest_s(transport, ping_pong(transport, pair, _cut(memory, nbytes), tag), REPEATS) / 2

    if kind == BETWEEN:
        one_way: Ends = {first: (second, None), second: (None, first)}.get(rank, (None, None))
        return [max(n / streamed_s(ends, n) for n in STREAM_BYTES) for ends in (one_way, both, busy)]
    return [
        max(n / turn_s(n) for n in RATE_BYTES),
        *(max(n / shifted_s(ends, n) for n in RATE_BYTES) for ends in (both, busy)),
    ]


def ping_pong(transport: Transport, pair: tuple[int, int], memory: tuple, tag: int) -> Callable[[], None]:
    """Return a round in which the first of a pair sends to the second, which sends back; the others do nothing."""
    if transport.rank not in pair:
        return lambda: None
    first, second = pair
    peer, (out, into) = second if transport.rank == first else first, memory
    send, recv = transport.sends([(peer, out)], tag), transport.recvs([(peer, into)], tag)
    handles = (send, recv) if transport.rank == first else (recv, send)

    def play() -> None:
        for handle in handles:
            handle.start()
            handle.wait(DEADLINE_S)

    return play


def _handles(transport: Transport, ends: Ends, memory: tuple, tag: int, count: int) -> list[list[Handle]]:
    """Return ``count`` messages that are received, and as many that are sent; none of either without a peer."""
    (to, source), (out, into) = ends, memory
    handles = [] if source is None else [[transport.recvs([(source, into)], tag) for _ in range(count)]]
    return handles + ([] if to is None else [[transport.sends([(to, out)], tag) for _ in range(count)]])


def stream(transport: Transport, ends: Ends, memory: tuple, tag: int, window: int = WINDOW) -> Callable[[int], None]:
    """Return a function of a number of messages, which sends that many to one rank while receiving as many from one,
    ``window`` of them in flight at any time."""
    both = _handles(transport, ends, memory, tag, window)

    def play(count: int) -> None:
        flying: list[deque[Handle]] = [deque() for _ in both]
        for number in range(count + window):
            for handles, queue in zip(both, flying, strict=True):
                if number >= window:
                    queue.popleft().wait(DEADLINE_S)
                if number < count:
                    handles[number % window].start()
                    queue.append(handles[number % window])

    return play


def repeated(action: Callable[[], None], times: int) -> Callable[[], None]:
    def play() -> None:
        for _ in range(times):
            action()

    return play


def slowest_s(transport: Transport, action: Callable[[], None], repeats: int) -> float:
    """Return the median over ``repeats`` of the slowest rank's time; collective."""
    times = [timed(transport, action) for _ in range(WARM_UP + repeats)][WARM_UP:]
    return statistics.median(_slowest(transport, times))


def _slowest(transport: Transport, times_of_rank: Sequence[float]) -> list[float]:
    return [max(times) for times in zip(*transport.gather_json(times_of_rank), strict=True)]


def sustained_s(transport: Transport, play: Callable[[int], None]) -> float:
    """Return the seconds a message of a long stream, on the slowest rank; collective.

    It is the difference between a stream of 2k messages and one of k, each at its fastest: both contain the bytes that
    a shaper passes before it slows down, a switch's buffers and the time to begin, so the difference does not. But it
    is never less than a message's time in the longer stream: a disturbance of the shorter one makes no link faster.
    """

    def least_s(times_of_rank: Sequence[float]) -> float:
        return min(_slowest(transport, times_of_rank))

    def stream_s(messages: int) -> float:
        return timed(transport, lambda: play(messages))

    count = WINDOW
    while count < MOST_MESSAGES and least_s([stream_s(count)]) < STREAM_S:
        count *= 2
    short, long = zip(*((stream_s(count), stream_s(2 * count)) for _ in range(STREAM_REPEATS)), strict=True)
    short_s, long_s = least_s(short), least_s(long)
    return max(long_s - short_s, long_s / 2) / count


# ── beside computing ──────────────────────────────────────────────────────────────────────────────────────────────────
def beside_computing_s(
    transport: Transport, both: list[list[Handle]], count: int, work: Callable[[], None]
) -> tuple[float, float]:
    """Return what a message sent and one received, of ``count``, take beside computing, by the mean of ranks: the
    seconds by which pieces of ``work`` take longer, and all the seconds that they travel. Collective. Messages are
    looked at between two pieces. ``both``: of :func:`_handles`; empty on ranks without a peer
    """
    alone, taken = repeated(work, ALONE_PIECES), []
    for _ in range(BESIDE_REPEATS):
        before_s = timed(transport, alone)
        transport.barrier()
        pieces, beside_s = _beside(both, count, work)
        alone_s = (before_s + timed(transport, alone)) / 2 / ALONE_PIECES
        taken.append(((beside_s - pieces * alone_s) / count, beside_s / count))
    medians = [statistics.median(each) for each in zip(*taken, strict=True)] if both else None
    every = [each for each in transport.gather_json(medians) if each is not None]
    core_s, beside_s = map(statistics.mean, zip(*every, strict=True))
    return max(core_s, 0.0), beside_s


def _beside(both: list[list[Handle]], count: int, work: Callable[[], None]) -> tuple[int, float]:
    """Send and receive ``count`` messages while working. Returns (pieces of work, seconds)."""
    flying: list[deque[Handle]] = [deque() for _ in both]
    started, pieces, began = [0] * len(both), 0, time.perf_counter()
    while True:
        for direction, (handles, queue) in enumerate(zip(both, flying, strict=True)):
            while queue and queue[0].test():
                queue.popleft()
            while started[direction] < count and len(queue) < WINDOW:
                queue.append(handles[started[direction] % WINDOW])
                queue[-1].start()
                started[direction] += 1
        if not any(flying):
            return pieces, time.perf_counter() - began
        if time.perf_counter() - began > DEADLINE_S:
            next(queue[0] for queue in flying if queue).wait(0)  # names the peer
        work()
        pieces += 1


def _addition(buffers: Buffers, memory: tuple) -> Callable[[], None]:
    """Return a function that adds a buffer into another."""
    numbers = TYPES["float32"]
    combine, device = buffers.combining(numbers, "sum")
    a, b = (buffers.typed(span, GAMMA_BYTES, numbers) for span in memory)

    def add() -> None:
        combine(a, b, b)
        device.mark().wait()

    return add


# ── every pair: a map that shows a faulty node, cable or core ─────────────────────────────────────────────────────────
def measure_pairs(
    buffers: Buffers,
    tag: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> list[dict]:
    """Return one row a pair, ``latency_s`` and ``bytes_per_s`` of one direction; collective, the same on all ranks. All
    other ranks wait meanwhile, so that p ranks take p(p-1)/2 turns. ``pairs``: those to measure; all by default.
    """
    transport, memory = buffers.transport, touched_pair(buffers, PAIR_BYTES)
    pairs = list(combinations(range(transport.size), 2)) if pairs is None else pairs
    rows = []
    for done, pair in enumerate(pairs):
        progress(done, len(pairs))
        latency_s = _latency_s(transport, pair, memory, tag, PAIR_REPEATS)
        rate = 2 * PAIR_BYTES / slowest_s(transport, ping_pong(transport, pair, memory, tag), PAIR_REPEATS)
        rows.append({"first": pair[0], "second": pair[1], "latency_s": latency_s, "bytes_per_s": rate})
    return rows


def worst_pairs(rows: list[dict]) -> dict[str, dict]:
    """Return the pair with the highest latency, and that with the lowest bandwidth."""
    return {
        "latency": max(rows, key=lambda row: row["latency_s"]),
        "bandwidth": min(rows, key=lambda row: row["bytes_per_s"]),
    }


def sick(rows: list[dict], hosts: Sequence[str]) -> list[str]:
    """Return the outliers in words: the host whose links to other hosts are worse than those between the others; the
    rank, on a single host. ``hosts`` are by rank. Two cannot be distinguished.
    """
    groups = list(hosts) if len(set(hosts)) > 1 else [f"rank {rank}" for rank in range(len(hosts))]
    links = [({groups[row["first"]], groups[row["second"]]}, row) for row in rows]
    names = dict.fromkeys(groups)
    if len(names) < 3:
        return []

    def medians(name: str, figure: str) -> tuple[float, ...]:
        """Return the median figure of the links of a group to others, and that of the links between the others."""
        return tuple(
            statistics.median(row[figure] for ends, row in links if len(ends) > 1 and (name in ends) == wanted)
            for wanted in (True, False)
        )

    rates = {name: medians(name, "bytes_per_s") for name in names}
    latencies = {name: medians(name, "latency_s") for name in names}
    slower = {name: others / group for name, (group, others) in rates.items()}
    later = {name: group / others for name, (group, others) in latencies.items()}
    slow, late = max(names, key=slower.__getitem__), max(names, key=later.__getitem__)
    lines = []
    if slower[slow] > STANDS_OUT:
        lines.append(f"{slow} has slow links: {slower[slow]:.1f} times slower than those of the others")
    if later[late] > STANDS_OUT:
        lines.append(f"{late} has late messages: {later[late]:.1f} times the latency of the others")
    return lines
