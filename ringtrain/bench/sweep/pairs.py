"""Measurement of every pair of ranks: a map that shows a faulty node, cable or core."""

import statistics
from collections.abc import Callable, Sequence
from itertools import combinations

from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.round_trips import message_buffers, ping_pong, repeated, slowest_s
from ringtrain.bench.model.calibration import ALPHA_BYTES, ALPHA_ROUNDS

RATE_BYTES = 1 << 22  # well beyond a network's first burst
REPEATS = 7
STANDS_OUT = 1.3  # times worse than the others' own pairs


def measure_pairs(
    buffers: Buffers,
    tag: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> list[dict]:
    """Return one row a pair, ``latency_s`` and ``bytes_per_s`` of one direction; collective, the same on all ranks. All
    other ranks wait meanwhile, so that p ranks take p(p-1)/2 turns. ``pairs``: those to measure; all by default.
    """
    transport, (out, into) = buffers.transport, message_buffers(buffers, RATE_BYTES)
    pairs = list(combinations(range(transport.size), 2)) if pairs is None else pairs
    rows = []
    for done, (first, second) in enumerate(pairs):
        progress(done, len(pairs))
        small, large = (ping_pong(transport, first, second, out[:n], into[:n], tag) for n in (ALPHA_BYTES, RATE_BYTES))
        latency_s = slowest_s(transport, repeated(small, ALPHA_ROUNDS), REPEATS) / ALPHA_ROUNDS / 2
        rate = 2 * RATE_BYTES / slowest_s(transport, large, REPEATS)
        rows.append({"first": first, "second": second, "latency_s": latency_s, "bytes_per_s": rate})
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
    several = len(set(hosts)) > 1
    groups = list(hosts) if several else [f"rank {rank}" for rank in range(len(hosts))]
    rows = [row for row in rows if groups[row["first"]] != groups[row["second"]]]
    names = dict.fromkeys(groups)
    if len(names) < 3:
        return []
    comparisons = [_comparison(rows, groups, name) for name in names]
    slow, late = max(comparisons, key=lambda one: one["slower"]), max(comparisons, key=lambda one: one["later"])
    lines = []
    if slow["slower"] > STANDS_OUT:
        lines.append(f"{slow['name']} has slow links: {slow['slower']:.1f} times slower than those of the others")
    if late["later"] > STANDS_OUT:
        lines.append(f"{late['name']} has late messages: {late['later']:.1f} times the latency of the others")
    return lines


def _comparison(rows: list[dict], groups: Sequence[str], name: str) -> dict:
    has_name = [name in (groups[row["first"]], groups[row["second"]]) for row in rows]
    rate, rates = (_median(rows, has_name, wanted, "bytes_per_s") for wanted in (True, False))
    latency, latencies = (_median(rows, has_name, wanted, "latency_s") for wanted in (True, False))
    return {"name": name, "slower": rates / rate, "later": latency / latencies}


def _median(rows: list[dict], has_name: list[bool], wanted: bool, figure: str) -> float:
    return statistics.median(row[figure] for row, mine in zip(rows, has_name, strict=True) if mine == wanted)
