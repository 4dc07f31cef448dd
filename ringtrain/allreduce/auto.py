"""Which algorithm ``auto`` takes for a size, and why: a pure function of what was measured here.

Time of a candidate at a size, from its own rows of the tuning file:

    measured       a row of that very size
    interpolated   between its two neighbouring sizes, a straight line of log time over log size
    modelled       beyond its measured sizes: its fitted model, scaled to meet the nearest row

A modelled time counts only where no candidate has one of the others. The fastest wins; those within NEAR of it count
as equal, and of equals the one that comes first in the order that is used without a tuning file, so that noise does
not make the choice jump from size to size. A candidate with one wrong row never wins, whatever the size.

Without a tuning file, or where it says nothing, the first candidate of :func:`usual_order` is taken.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.allreduce import texts as texts
from ringtrain.allreduce.machine import RankLayout
from ringtrain.allreduce.tuning_table import Table, TimeModel, predict_s
from ringtrain.humanize import format_bytes, format_seconds

SMALL_BYTES = 32 << 10
NEAR = 0.03
MEASURED, INTERPOLATED, MODELLED, USUAL = "measured", "interpolated", "modelled", "usual"

# What is taken unmeasured, the first that runs here. Small buffers are all latency, of which the MPI in C has least.
SMALL = ("mpi",)
ONE_NODE = ("mapped", "sliced", "ring")
SEVERAL_NODES = ("routed", "hierarchical", "ring")


@dataclass(frozen=True, slots=True)
class Candidates:
    """Where a choice is made.

    candidates: names that run here, at least one, in the order in which equals are taken after the usual ones
    refused:    why other names do not run here
    on_device:  whether the buffer is in the memory of a device
    """

    layout: RankLayout
    candidates: Sequence[str]
    refused: dict[str, str]
    on_device: bool = False


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """algorithm: the name
    basis:     how its time was come by: measured, interpolated, modelled; or usual, where there is none
    why:       in words
    times_s:   of every candidate that was compared
    """

    algorithm: str
    basis: str
    why: str
    times_s: dict[str, float]


def usual_order(nbytes: int, layout: RankLayout, on_device: bool = False) -> tuple[str, ...]:
    """Names by preference where nothing was measured."""
    large = ONE_NODE if layout.nodes == 1 else SEVERAL_NODES
    return SMALL + large if nbytes <= SMALL_BYTES and not on_device else large


def take(nbytes: int, dtype: str, op: str, here: Candidates, table: Table | None) -> AlgorithmChoice:
    """The algorithm for a buffer of so many bytes on each rank.

    table: what was measured on this machine and layout; None where nothing was
    """
    if here.layout.ranks == 1:
        return AlgorithmChoice(here.candidates[0], USUAL, texts.ONE_RANK, {})
    usual = [name for name in usual_order(nbytes, here.layout, here.on_device) if name in here.candidates]
    order = list(dict.fromkeys([*usual, *here.candidates]))
    if here.on_device:
        return _unmeasured(order, nbytes, here, texts.HOST_TUNING)
    if table is None:
        return _unmeasured(order, nbytes, here, texts.NO_TUNING)
    group = table.group(dtype, op)
    found = {name: time for name in order if (time := estimate(group.points.get(name), group.models.get(name), nbytes))}
    if any(basis != MODELLED for _, basis in found.values()):
        found = {name: (time, basis) for name, (time, basis) in found.items() if basis != MODELLED}
    if not found:
        return _unmeasured(order, nbytes, here, texts.NO_TIME)
    return _fastest(found, "" if group.name == (dtype, op) else " ".join(group.name))


def estimate(
    points: Sequence[tuple[int, float]] | None, models: Sequence[TimeModel] | None, nbytes: int
) -> tuple[float, str] | None:
    """(seconds, how) of an algorithm at a size, from its (bytes, seconds) by size; None where nothing tells."""
    if not points:
        return None
    place = bisect_left(points, (nbytes,))
    if place < len(points) and points[place][0] == nbytes:
        return points[place][1], MEASURED
    if 0 < place < len(points):
        return _between(points[place - 1], points[place], nbytes), INTERPOLATED
    return _beyond(points[min(place, len(points) - 1)], models, nbytes)


def _between(low: tuple[int, float], high: tuple[int, float], nbytes: int) -> float:
    share = math.log(nbytes / low[0]) / math.log(high[0] / low[0])
    return low[1] * (high[1] / low[1]) ** share


def _beyond(edge: tuple[int, float], models: Sequence[TimeModel] | None, nbytes: int) -> tuple[float, str] | None:
    """The models' course, through the last row: there the choice must not jump."""
    if not models or not predict_s(models, edge[0]):
        return None
    return edge[1] * predict_s(models, nbytes) / predict_s(models, edge[0]), MODELLED


def _fastest(found: dict[str, tuple[float, str]], group: str) -> AlgorithmChoice:
    """``found``: (seconds, how) by name, in the order in which equals are taken. ``group``: the type and operation
    that were measured, if they are others."""
    times = {name: time for name, (time, _) in found.items()}
    least = min(times, key=times.get)
    chosen = next(name for name, time in times.items() if time <= times[least] * (1 + NEAR))
    basis, time = found[chosen][1], format_seconds(times[chosen])
    why = texts.CHOSEN_AS_FOR(basis=basis, group=group, time=time) if group else texts.CHOSEN(basis=basis, time=time)
    if chosen != least:
        why += texts.WITHIN(near=NEAR, fastest=least, time=format_seconds(times[least]))
    else:
        others = sorted((time, name) for name, time in times.items() if name != chosen)
        why += "".join(texts.NEXT(name=name, time=format_seconds(time)) for time, name in others[:1])
    return AlgorithmChoice(chosen, basis, why, times)


def _unmeasured(order: list[str], nbytes: int, here: Candidates, because: str) -> AlgorithmChoice:
    wanted = usual_order(nbytes, here.layout, here.on_device)
    passed = wanted[: wanted.index(order[0])] if order[0] in wanted else wanted
    layout = here.layout.words()
    if here.on_device:
        why = texts.USUAL(reason=because, layout=layout)
    else:
        usual = texts.USUAL_UP_TO if nbytes <= SMALL_BYTES else texts.USUAL_ABOVE
        why = usual(reason=because, size=format_bytes(SMALL_BYTES), layout=layout)
    why += "".join(texts.PASSED_OVER(name=name, why=here.refused[name]) for name in passed if name in here.refused)
    return AlgorithmChoice(order[0], USUAL, why, {})
