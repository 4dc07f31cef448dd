"""Pairs of ranks, each measured by itself: latency and bandwidth, and the pair that stands out.

Pairs are taken in turns around the ranks, so that each rank is in one soon, then at random, until the time is over: for
a map of all of them there is ``ringtrain bench-allreduce --pairs``. Times are the best of a few, which another
program's work on a shared machine spoils least.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ringtrain.bench.calibration import BETWEEN, INSIDE
from ringtrain.bench.links import ping_pong, repeated
from ringtrain.bench.timing import timed
from ringtrain.humanize import format_rate, format_seconds, plural
from ringtrain.launch.doctor.doctor import OK, WARN, Line, Visit
from ringtrain.transport.base import Transport

BUDGET_S = 3.0
SMALL, LARGE = 8, 1 << 20  # bytes
ROUNDS, TIMES = 20, 5
STANDS_OUT = 4.0  # times worse than the median of its kind
LEAST_PAIRS = 3  # of a kind, for a median that means something
NOTHING_S = 20e-6  # latencies below this are not told from a busy core


@dataclass(frozen=True, slots=True)
class Pair:
    first: int
    second: int
    kind: str
    latency_s: float
    bytes_per_s: float


def links(visit: Visit) -> list[Line]:
    """Collective."""
    transport = visit.transport
    if transport.size == 1:
        return []
    nodes, hosts = transport.gather_json(transport.node), transport.gather_json(visit.host)
    pairs = measure(transport, nodes, BUDGET_S)
    lines = []
    for kind in (INSIDE, BETWEEN):
        some = [pair for pair in pairs if pair.kind == kind]
        total = sum(kind_of(nodes, *both) == kind for both in combinations(range(transport.size), 2))
        lines += [judge(some, hosts, total)] if some else []
    return lines


def kind_of(nodes: Sequence[int], first: int, second: int) -> str:
    return INSIDE if nodes[first] == nodes[second] else BETWEEN


def measure(transport: Transport, nodes: Sequence[int], budget_s: float) -> list[Pair]:
    """What was measured in the time, the same on all ranks; collective. ``nodes``: by rank."""
    out, into = (transport.allocate(LARGE, np.uint8) for _ in range(2))
    pairs, began = [], time.perf_counter()
    for first, second in in_turn(transport.size):
        play = repeated(ping_pong(transport, first, second, out[:SMALL], into[:SMALL], 0), ROUNDS)
        small_s = _best(transport, play) / ROUNDS / 2
        large_s = _best(transport, ping_pong(transport, first, second, out, into, 0)) / 2
        pairs.append(Pair(first, second, kind_of(nodes, first, second), small_s, LARGE / large_s))
        if transport.gather_json(time.perf_counter() - began)[0] > budget_s:
            break
    return pairs


def in_turn(size: int) -> Iterator[tuple[int, int]]:
    """Every pair once: neighbours in a circle first, the others at random but the same on every rank."""
    circle = dict.fromkeys(tuple(sorted((rank, (rank + 1) % size))) for rank in range(size))
    yield from circle
    rest = [pair for pair in combinations(range(size), 2) if pair not in circle]
    random.Random(0).shuffle(rest)
    yield from rest


def _best(transport: Transport, play) -> float:
    """Of a few times, each that of the slowest rank."""
    own = [timed(transport, play) for _ in range(TIMES)]
    return min(max(times) for times in zip(*transport.gather_json(own), strict=True))


def judge(pairs: Sequence[Pair], hosts: Sequence[str], total: int) -> Line:
    """``pairs``: of one kind, of which there are ``total``; ``hosts``: by rank."""
    name = f"links {pairs[0].kind}"
    latency_s = statistics.median(pair.latency_s for pair in pairs)
    bytes_per_s = statistics.median(pair.bytes_per_s for pair in pairs)
    measured = f"{len(pairs)} of " if len(pairs) < total else ""
    text = f"{format_seconds(latency_s)}, {format_rate(bytes_per_s)} ({measured}{plural(total, 'pair')})"
    late, slow = max(pairs, key=lambda pair: pair.latency_s), min(pairs, key=lambda pair: pair.bytes_per_s)
    found = []
    if late.latency_s > STANDS_OUT * max(latency_s, NOTHING_S):
        found.append(f"{_who(late, hosts)}: {format_seconds(late.latency_s)}")
    if slow.bytes_per_s * STANDS_OUT < bytes_per_s:
        found.append(f"{_who(slow, hosts)}: {format_rate(slow.bytes_per_s)}")
    if not found or len(pairs) < LEAST_PAIRS:
        return Line(OK, name, text)
    advice = "every step waits for the slowest: ringtrain bench-allreduce --pairs shows all; leave such a node out"
    return Line(WARN, name, f"{text}, but {'; '.join(found)}", advice)


def _who(pair: Pair, hosts: Sequence[str]) -> str:
    first, second = hosts[pair.first], hosts[pair.second]
    return f"ranks {pair.first} and {pair.second} ({first if first == second else f'{first} and {second}'})"
