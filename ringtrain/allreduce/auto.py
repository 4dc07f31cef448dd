"""The choice of ``auto`` for a size, and its reason: a pure function of this machine's measurements.

The time of a candidate at a size, from its own rows of the tuning file:

    measured       a row of that very size
    interpolated   between its two neighbouring sizes, a straight line of log time over log size
    modelled       beyond its measured sizes: its fitted model, scaled to meet the nearest row

A modelled time counts only if no candidate has one of the others. The fastest candidate wins. Candidates within NEAR of
it count as equal, and the first of them in the order without a tuning file is taken, so that noise does not make the
choice jump from size to size. A candidate with one wrong row never wins, at any size.

Without a tuning file, or without an answer in it, the first candidate of :func:`usual_order` is taken.

The reason also says what the ring costs: its time, or its messages if it has none.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.allreduce.machine import RankLayout
from ringtrain.allreduce.tuning_table import Table, TimeModel, predict_s
from ringtrain.humanize import format_bytes, format_seconds

SMALL_BYTES = 32 << 10
NEAR = 0.03
MEASURED, INTERPOLATED, MODELLED, USUAL = "measured", "interpolated", "modelled", "usual"

# Order without measurements: the first that runs here is taken. Small buffers between nodes are all latency, and the
# MPI in C has the least.
RING = "ring"
SMALL = ("mpi",)
ONE_NODE = ("mapped", "stream", "sliced", RING)
SEVERAL_NODES = ("routed", "hierarchical", RING)
BECAUSE = {
    "mpi": "; it has the least latency",
    **dict.fromkeys(("mapped", "stream"), "; it sends no messages"),
    "sliced": "; it takes 2 rounds of messages",
    "routed": "; it sends messages only between nodes",
    "hierarchical": "; it sends the fewest bytes between nodes",
}


@dataclass(frozen=True, slots=True)
class Candidates:
    """The algorithms of a choice."""

    layout: RankLayout
    # names that run here, at least one; among equals, earlier ones come first after the usual ones
    candidates: Sequence[str]
    refused: dict[str, str]  # the reason for each other name
    on_device: bool = False  # whether the buffer is in device memory


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """A chosen algorithm."""

    algorithm: str  # the name
    basis: str  # source of its time: measured, interpolated, modelled; or usual, without one
    why: str  # the reason in words
    times_s: dict[str, float]  # times of all candidates that were compared


def usual_order(nbytes: int, layout: RankLayout, on_device: bool = False) -> tuple[str, ...]:
    """Return the names by preference without a measurement."""
    if layout.nodes == 1:
        return ONE_NODE
    return SMALL + SEVERAL_NODES if nbytes <= SMALL_BYTES and not on_device else SEVERAL_NODES


def select_algorithm(nbytes: int, dtype: str, op: str, eligible: Candidates, table: Table | None) -> AlgorithmChoice:
    """Return the algorithm for a buffer of ``nbytes`` on each rank.

    table: measurements on this machine and layout; None without any
    """
    if eligible.layout.ranks == 1:
        return AlgorithmChoice(eligible.candidates[0], USUAL, "one rank has nothing to exchange", {})
    usual = [name for name in usual_order(nbytes, eligible.layout, eligible.on_device) if name in eligible.candidates]
    order = list(dict.fromkeys([*usual, *eligible.candidates]))
    if eligible.on_device:
        return _unmeasured(order, nbytes, eligible, "tuning files are for host memory")
    if table is None:
        return _unmeasured(order, nbytes, eligible, "no tuning file")
    group = table.group(dtype, op)
    times = {name: time for name in order if (time := estimate(group.points.get(name), group.models.get(name), nbytes))}
    if any(basis != MODELLED for _, basis in times.values()):
        times = {name: (time, basis) for name, (time, basis) in times.items() if basis != MODELLED}
    if not times:
        return _unmeasured(order, nbytes, eligible, "the tuning file has no time of an algorithm that can run here")
    return _fastest(times, "" if group.name == (dtype, op) else " ".join(group.name), eligible.layout.ranks)


def estimate(
    points: Sequence[tuple[int, float]] | None, models: Sequence[TimeModel] | None, nbytes: int
) -> tuple[float, str] | None:
    """Return (seconds, basis) of an algorithm at a size, from its (bytes, seconds) by size; None if neither rows nor
    models give one.
    """
    if not points:
        return None
    place = bisect_left(points, (nbytes,))
    if place < len(points) and points[place][0] == nbytes:
        return points[place][1], MEASURED
    if 0 < place < len(points):
        (low, low_s), (high, high_s) = points[place - 1], points[place]
        return low_s * (high_s / low_s) ** (math.log(nbytes / low) / math.log(high / low)), INTERPOLATED
    last, last_s = points[min(place, len(points) - 1)]
    if not models or not predict_s(models, last):
        return None
    return last_s * predict_s(models, nbytes) / predict_s(models, last), MODELLED  # where they meet it does not jump


def _fastest(times: dict[str, tuple[float, str]], group: str, ranks: int) -> AlgorithmChoice:
    """Return the fastest. ``times``: (seconds, basis) by name, in the order of preference among equals. ``group``: the
    measured type and operation, if they are others.
    """
    seconds = {name: time for name, (time, _) in times.items()}
    least = min(seconds, key=seconds.__getitem__)
    chosen = next(name for name, time in seconds.items() if time <= seconds[least] * (1 + NEAR))
    basis, time = times[chosen][1], format_seconds(seconds[chosen])
    why = f"{basis} as for {group} {time}" if group else f"{basis} {time}"
    named = [chosen]
    if chosen != least:
        named.append(least)
        why += f", within {NEAR:.0%} of {least} ({format_seconds(seconds[least])})"
    else:
        others = sorted((time, name) for name, time in seconds.items() if name != chosen)
        named += [name for _, name in others[:1]]
        why += "".join(f"; {name} {format_seconds(time)}" for time, name in others[:1])
    if RING not in named:
        why += f"; {RING} {format_seconds(seconds[RING])}" if RING in seconds else _ring_messages(ranks)
    return AlgorithmChoice(chosen, basis, why, seconds)


def _ring_messages(ranks: int) -> str:
    return f"; ring: each rank sends {2 * (ranks - 1) / ranks:.3g} x the buffer in {2 * (ranks - 1)} rounds"


def _unmeasured(order: list[str], nbytes: int, eligible: Candidates, because: str) -> AlgorithmChoice:
    wanted = usual_order(nbytes, eligible.layout, eligible.on_device)
    passed = wanted[: wanted.index(order[0])] if order[0] in wanted else wanted
    layout = eligible.layout
    if eligible.on_device or layout.nodes == 1:
        why = f"{because}: the default, {layout.words()}"
    else:
        side = "up to" if nbytes <= SMALL_BYTES else "above"
        why = f"{because}: the default {side} {format_bytes(SMALL_BYTES)}, {layout.words()}"
    why += BECAUSE.get(order[0], "")
    why += "".join(f"; not {name}: {eligible.refused[name]}" for name in passed if name in eligible.refused)
    why += _ring_messages(layout.ranks) if order[0] != RING else ""
    return AlgorithmChoice(order[0], USUAL, why, {})
