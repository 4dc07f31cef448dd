"""Every pair of ranks by itself: the map on which a sick node, cable or core shows."""

import statistics

from ringtrain.bench.calibration import ALPHA_BYTES, ALPHA_ROUNDS
from ringtrain.bench.links import ping_pong, repeated, room, slowest_s
from ringtrain.transport.base import Transport

RATE_BYTES = 1 << 20
REPEATS = 11


def measure_pairs(transport: Transport, tag: int, progress=lambda done, total: None) -> list[dict]:
    """One row a pair, ``latency_s`` and ``bytes_per_s`` of one direction; collective, the same on all ranks. All other
    ranks wait meanwhile, so that p ranks take p(p-1)/2 turns."""
    out, into = room(transport, RATE_BYTES)
    pairs = [(a, b) for a in range(transport.size) for b in range(a + 1, transport.size)]
    rows = []
    for done, (first, second) in enumerate(pairs):
        progress(done, len(pairs))
        small, large = (ping_pong(transport, first, second, out[:n], into[:n], tag) for n in (ALPHA_BYTES, RATE_BYTES))
        latency_s = slowest_s(transport, repeated(small, ALPHA_ROUNDS), REPEATS) / ALPHA_ROUNDS / 2
        rate = 2 * RATE_BYTES / slowest_s(transport, large, REPEATS)
        rows.append({"first": first, "second": second, "latency_s": latency_s, "bytes_per_s": rate})
    return rows


def worst(rows: list[dict]) -> dict[str, dict]:
    """The pair of the highest latency, and that of the lowest bandwidth."""
    return {
        "latency": max(rows, key=lambda row: row["latency_s"]),
        "bandwidth": min(rows, key=lambda row: row["bytes_per_s"]),
    }


def slowest_rank(rows: list[dict]) -> int:
    """The rank whose pairs have the lowest median bandwidth: where a map has one bad row, that is it."""
    ranks = {row["first"] for row in rows} | {row["second"] for row in rows}
    return min(sorted(ranks), key=lambda rank: statistics.median(_rates(rows, rank)))


def _rates(rows: list[dict], rank: int) -> list[float]:
    return [row["bytes_per_s"] for row in rows if rank in (row["first"], row["second"])]
