"""Star and ring against the number of ranks: the two slopes that the ring is famous for, measured.

With links of b bytes/s and a buffer of n bytes, K ranks take 2(K-1)·n/b in a star, whose root receives and
sends every leaf's buffer one after the other, and 2(1-1/K)·n/b in a ring, which hardly depends on K. ``b`` is
measured in the same run, in two ways:

*pair*   one pair of ranks plays ping-pong with the whole buffer, and nobody else sends: what a link can do
*busy*   every rank sends the whole buffer to its right and receives one from its left, all at once: what a
         link can do when all are in use. Ranks of one machine share its memory, and with more ranks than
         cores their time too, so that there this falls as K grows, where on a network it would not

The formulas are of the textbooks, where a transfer begins when the one before it has ended. Executions cut
moves into segments: the star's root sends the first sums while later contributions still arrive, and where
links carry both directions at once it may take half of its formula. ``segment_bytes`` as large as the buffer
measures the textbook's.

One call measures one K, under ``mpirun -np K``; rows of several runs are drawn together.
"""

import os
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial

from ringtrain.bench.links import WARM_UP, exchange, ping_pong, slowest_s
from ringtrain.bench.timing import timed
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execute import SEGMENT_BYTES, Execution
from ringtrain.transport.base import Transport

DEADLINE_S = 120.0
BUFFERS: dict[str, Callable[[int], float]] = {"star": lambda k: 2 * (k - 1), "ring": lambda k: 2 * (1 - 1 / k)}
FORMULAS = {"star": "2(K-1)·n/b", "ring": "2(1-1/K)·n/b"}
COLOURS = {"star": "tab:red", "ring": "tab:blue"}


def measure(
    transport: Transport,
    ops,
    names: Sequence[str],
    nbytes: int,
    repeats: int,
    segment_bytes: int = SEGMENT_BYTES,
    seed: int = 0,
) -> list[dict]:
    """One row for each schedule, the same on all ranks; collective. A repetition runs all schedules once, in
    a random order that all ranks draw alike; its time is that of the slowest rank; ranks write the buffer before,
    outside the clock, as in a sweep, and are started by a barrier.

    Units of a row: ``bytes`` of the buffer, ``…_s`` seconds, ``…_bytes_per_s`` of one direction of one link.
    """
    buffer = transport.allocate(nbytes // ops.dtype.itemsize, ops.dtype)
    runs = {
        name: Execution(make_schedule(name, transport.size), transport, buffer, ops.add, tag, segment_bytes, ops)
        for tag, name in enumerate(names)
    }
    own = _times(transport, runs, partial(ops.fill, buffer, 0), repeats, random.Random(seed))
    every = transport.gather_json(own)
    links = calibrate(transport, buffer, repeats, tag=len(runs))
    return [
        _row(transport, name, nbytes, [times[name] for times in every]) | links | {"wire_bytes": run.bytes_sent}
        for name, run in runs.items()
    ]


def _times(
    transport: Transport, runs: dict[str, Execution], write: Callable[[], None], repeats: int, rng: random.Random
) -> dict[str, list]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(WARM_UP + repeats):
        for name in rng.sample(list(runs), len(runs)):
            write()
            took = timed(transport, partial(_run, runs[name]))
            if repeat >= WARM_UP:
                times[name].append(took)
    return times


def _run(execution: Execution) -> None:
    execution.start()
    execution.wait(DEADLINE_S)


def _row(transport: Transport, name: str, nbytes: int, times_by_rank: list[list[float]]) -> dict:
    slowest = sorted(max(times) for times in zip(*times_by_rank, strict=True))
    mean = statistics.fmean(slowest)
    return {
        "algorithm": name,
        "ranks": transport.size,
        "nodes": transport.nodes,
        "bytes": nbytes,
        "repeats": len(slowest),
        "median_s": statistics.median(slowest),
        "min_s": slowest[0],
        "p95_s": slowest[round(0.95 * (len(slowest) - 1))],
        "cv": statistics.pstdev(slowest) / mean,
        "oversubscribed": transport.local_size > len(os.sched_getaffinity(0)),
    }


def calibrate(transport: Transport, buffer, repeats: int, tag: int) -> dict:
    """Bytes a second of one link: ``pair_bytes_per_s`` and ``busy_bytes_per_s``, medians; 0 where there is no
    link. Collective."""
    if transport.size == 1:
        return {"pair_bytes_per_s": 0.0, "busy_bytes_per_s": 0.0}
    nbytes = buffer.size * buffer.dtype.itemsize
    other = transport.allocate(buffer.size, buffer.dtype)
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    ping_s = slowest_s(transport, ping_pong(transport, 0, 1, buffer, other, tag), repeats)
    shift_s = slowest_s(transport, exchange(transport, right, left, buffer, other, tag + 1), repeats)
    return {"pair_bytes_per_s": 2 * nbytes / ping_s, "busy_bytes_per_s": nbytes / shift_s}


def formula_s(row: dict, rate: float) -> float:
    """What the textbook's formula says of the row's schedule, K and n, over links of ``rate`` bytes/s."""
    return BUFFERS[row["algorithm"]](row["ranks"]) * row["bytes"] / rate if row["ranks"] > 1 else 0.0


def draw(rows: Sequence[dict], path, place: str = "") -> None:
    """Time against K for each schedule, points with their bounds: dashed by the pair's rate at the smallest
    K, one b for all K as in the formula; dotted by the busy rate of each K. ``place``: where and when it was measured,
    for the title. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    one_b = min((row for row in rows if row["ranks"] > 1), key=lambda row: row["ranks"])["pair_bytes_per_s"]
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        _draw_one(axes, sorted((r for r in rows if r["algorithm"] == name), key=lambda r: r["ranks"]), one_b)
    axes.set(xlabel="ranks K", ylabel="time of one all-reduce (ms)", ylim=(0, None))
    axes.set_xticks(sorted({row["ranks"] for row in rows}))
    axes.set_title("\n".join(filter(None, (place, title_of(rows, one_b)))), fontsize="small")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _draw_one(axes, rows: list[dict], one_b: float) -> None:
    name, ranks = rows[0]["algorithm"], [row["ranks"] for row in rows]
    colour, formula = COLOURS[name], FORMULAS[name]
    low = [1e3 * (row["median_s"] - row["min_s"]) for row in rows]
    high = [1e3 * max(row["p95_s"] - row["median_s"], 0) for row in rows]
    medians = [1e3 * row["median_s"] for row in rows]
    axes.errorbar(ranks, medians, [low, high], fmt="o", color=colour, label=name, capsize=2)
    lone = [1e3 * formula_s(row, one_b) for row in rows]
    axes.plot(ranks, lone, "--", color=colour, label=f"{formula}, b of one pair alone")
    busy = [1e3 * formula_s(row, row["busy_bytes_per_s"]) for row in rows]
    axes.plot(ranks, busy, ":", color=colour, label=f"{formula}, b of all K links busy")


def title_of(rows: Sequence[dict], one_b: float) -> str:
    """What was measured, what b is, and where ranks had to share cores."""
    busy = {row["ranks"]: row["busy_bytes_per_s"] for row in rows if row["ranks"] > 1}
    shared = sorted({row["ranks"] for row in rows if row["oversubscribed"]})
    lines = [
        f"n = {rows[0]['bytes'] / 2**20:g} MiB; medians of {rows[0]['repeats']}, bars min to p95; one link alone: "
        f"b = {one_b / 1e9:.2f} GB/s",
        "all links busy: " + ", ".join(f"K={k} {rate / 1e9:.2f}" for k, rate in sorted(busy.items())) + " GB/s",
    ]
    if shared:
        lines.append(f"more ranks than cores at K = {', '.join(map(str, shared))}: there cores and memory are measured")
    return "\n".join(lines)
