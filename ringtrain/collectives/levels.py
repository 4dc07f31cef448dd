"""Levels of a node: which of its ranks are near one another, as those that share a cache, or a socket.

With 64 ranks a node, an all-reduce in which each rank reads every other one moves all bytes between caches. By levels
the ranks of a domain add what they have, and one of them at a time exchanges a slice with the other domains: the bytes
that cross are those of a binary tree over domains, ``2 (d - 1) n`` of d domains and an array of n bytes.
"""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from ringtrain.errors import UsageError
from ringtrain.ops.cpu.streamed import MOST_LEVELS
from ringtrain.transport.base import Transport

FLAT = "flat"  # the name of one level
CPUS = Path("/sys/devices/system/cpu")
Domains = Sequence[str | None]  # of a rank, the nearest first; None: it may leave it
_LEVELS: WeakKeyDictionary[Transport, "Levels"] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Levels:
    """The ranks of a node by places, near ones together."""

    # the ranks of a group by level, the nearest first: (8, 4) are four domains of eight; their product is all
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # the local rank at each place


def in_order(shape: Sequence[int]) -> Levels:
    """Return the levels of this shape, ranks in their order."""
    return Levels(tuple(shape), tuple(range(math.prod(shape))))


def parse_shape(name: str) -> tuple[int, ...]:
    """Return the shape in the name of an algorithm, as in mapped:8x4. Raises UsageError."""
    kind, _, text = name.partition(":")
    parts = text.split("x")
    if not all(part.isdecimal() and int(part) > 1 for part in parts) or not 1 < len(parts) <= MOST_LEVELS:
        raise UsageError(
            f"unknown algorithm {name!r}: wanted the ranks of a domain and the number of domains, as {kind}:8x4; "
            f"{MOST_LEVELS} levels, as {kind}:8x4x2; or {kind}:{FLAT}"
        )
    return tuple(map(int, parts))


def named_shape(name: str) -> tuple[int, ...] | None:
    """Return the shape in an algorithm's name; () for one level, None for that of the kernel. Raises UsageError."""
    text = name.partition(":")[2]
    if text in ("", FLAT):
        return () if text else None
    return parse_shape(name)


def is_shape(text: str) -> bool:
    """Whether the text, behind the colon of a name, is meant as a shape."""
    return text == FLAT or (text[:1].isdecimal() and "x" in text)


def levels_text(levels: Levels) -> str:
    """Return their shape as it is written in names of algorithms; flat with one level."""
    return "x".join(map(str, levels.shape)) if len(levels.shape) > 1 else FLAT


def unlike(shape: Sequence[int], size: int) -> str | None:
    """Return the reason why a node of ``size`` ranks does not have this shape; None if it may."""
    ranks = math.prod(shape)
    return None if ranks == size else f"{'x'.join(map(str, shape))} are {ranks} ranks, and the node has {size}"


def levels_of_shape(transport: Transport, shape: Sequence[int] | None) -> Levels:
    """Return the levels of a node for a shape as of :func:`named_shape`. Collective the first time, if that is None."""
    return node_levels(transport) if shape is None else in_order(shape or (transport.local_size,))


def node_levels(transport: Transport) -> Levels:
    """Return the levels of the ranks of a node, as its kernel knows caches and sockets. Collective the first time."""
    levels = _LEVELS.get(transport)
    if levels is None:
        domains = transport.gather_json(read_domains(os.sched_getaffinity(0)))
        levels = _LEVELS[transport] = levels_of_domains([tuple(domains[rank]) for rank in transport.neighbours])
    return levels


def read_domains(cpus: set[int], folder: Path = CPUS) -> Domains:
    """Return the last cache that these processors share, and their socket."""
    caches = [_last_cache(folder / f"cpu{cpu}/cache") for cpu in cpus]
    sockets = [_text(folder / f"cpu{cpu}/topology/physical_package_id") for cpu in cpus]
    return tuple(each[0] if len(set(each)) == 1 else None for each in (caches, sockets))


def _last_cache(caches: Path) -> str | None:
    """Return the processors that share the cache of the highest level."""
    indices = sorted(caches.glob("index[0-9]*"), key=lambda index: int(index.name[5:]))
    return _text(indices[-1] / "shared_cpu_list") if indices else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def levels_of_domains(domains: Sequence[Domains]) -> Levels:
    """Return the levels of ranks in these domains. Those that do not have the same number of ranks each are left out,
    and those that hold one rank each, or all."""
    size, shape = len(domains), list[int]()
    places: list[tuple[int, ...]] = [(rank,) for rank in range(size)]
    for kind in zip(*domains, strict=True):
        counts, known, within = set(Counter(kind).values()), None not in kind, math.prod(shape)
        if known and len(counts) == 1 and within < (count := counts.pop()) < size and count % within == 0:
            shape.append(count // within)
            places = [(kind.index(name), *place) for name, place in zip(kind, places, strict=True)]
    ranks = sorted(range(size), key=places.__getitem__)
    return Levels((*shape, size // math.prod(shape)), tuple(ranks))
