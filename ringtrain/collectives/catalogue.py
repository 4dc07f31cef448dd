"""The catalogue of schedules by name."""

from collections.abc import Callable, Iterable, Sequence

from ringtrain.collectives import compose, texts
from ringtrain.collectives.algorithms import butterfly, circulant, double_tree, ring, sliced, star, tree
from ringtrain.collectives.algorithms.hierarchical import Builder, hierarchical
from ringtrain.collectives.algorithms.recursive_doubling import recursive_doubling
from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Schedule
from ringtrain.collectives.topology import Topology, even
from ringtrain.errors import UsageError, nearest

HALVES: dict[str, tuple[Builder, Builder]] = {
    "ring": (ring.reduce_scatter, ring.all_gather),
    "tree": (tree.reduce, tree.broadcast),
    "double-tree": (double_tree.reduce, double_tree.broadcast),
    "butterfly": (butterfly.reduce_scatter, butterfly.all_gather),
    "circulant": (circulant.reduce_scatter, circulant.all_gather),
    "star": (star.reduce, star.broadcast),
    "sliced": (sliced.reduce_scatter, sliced.all_gather),
}


def _in_halves(name: str, rounded: bool = False) -> Builder:
    """Return the all-reduce of two halves. ``rounded``: owners round their own copies between them."""
    scatter, gather = HALVES[name]
    return lambda size: compose.all_reduce(
        name, scatter(size), compose.rounded(gather(size)) if rounded else gather(size)
    )


# All-reduces that do not depend on nodes.
FLAT: dict[str, Builder] = {
    **{name: _in_halves(name) for name in ("ring", "tree", "double-tree", "butterfly", "circulant")},
    "recursive-doubling": recursive_doubling,
    **{name: _in_halves(name) for name in ("star", "sliced")},
}
HIERARCHICAL = "hierarchical"  # a ring within nodes, and one across them; hierarchical:INNER:OUTER is any pair


def _on_ranks(builder: Builder) -> Callable[[Topology], Schedule]:
    return lambda topology: builder(topology.size)


SCHEDULES: dict[str, Callable[[Topology], Schedule]] = {
    **{name: _on_ranks(builder) for name, builder in FLAT.items()},
    HIERARCHICAL: lambda topology: hierarchical(HIERARCHICAL, topology, HALVES["ring"], FLAT["ring"]),
}
GOALS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
# Names of earlier versions, and what there is in their place.
RENAMED = {"hierarchical-leader": "hierarchical:tree:ring is the same"}


def add_schedule(name: str, build: Builder, halves: tuple[Builder, Builder] | None = None) -> None:
    """Add an all-reduce of a plug-in, with its halves if it has them."""
    FLAT[name], SCHEDULES[name] = build, _on_ranks(build)
    if halves is not None:
        HALVES[name] = halves


def make_schedule(name: str, where: Topology | int, goal: str = ALL_REDUCE, rounded: bool = False) -> Schedule:
    """Return the schedule ``name`` for ranks on nodes, or for a number of ranks on one node. ``rounded``: for a wire
    format that rounds, so that owners round their own copies too.

    Raises UsageError for an unknown name, for a goal that the schedule has no half for, and for a schedule whose result
    a rounding wire would make different on different ranks.
    """
    check_name(name, rounded)
    topology = even(where) if isinstance(where, int) else where
    if goal != ALL_REDUCE:
        return _half(name, topology.size, goal, rounded)
    return (_rounded(name) if rounded else _plain(name))(topology)


def make_broadcast(name: str, size: int, root: int) -> Schedule:
    """Return the broadcast of ``root``'s buffer by the second half of the schedule ``name``. Raises UsageError."""
    half = _half(name, size, ALL_GATHER, rounded=False)
    shift = root - half.owner(0)
    return compose.from_root(compose.relabelled(half, [(rank + shift) % size for rank in range(size)]), root)


def make_by_rank(name: str, size: int, goal: str) -> Schedule:
    """Return the half of the schedule ``name`` whose chunk r is owned by rank r. Raises UsageError for one whose owners
    have other numbers of chunks."""
    half = _half(name, size, goal, rounded=False)
    owners = [half.owner(chunk) for chunk in range(half.chunks)]
    if sorted(owners) != list(range(size)):
        raise UsageError(
            f"{name} has no {goal} that gives each of {size} ranks one row: take ring, circulant, sliced or mpi"
        )
    return compose.relabelled(half, [owners.index(rank) for rank in range(size)])


def _plain(name: str) -> Callable[[Topology], Schedule]:
    if name in SCHEDULES:
        return SCHEDULES[name]
    inner, outer = _pair(name)
    return lambda topology: hierarchical(name, topology, HALVES[inner], FLAT[outer])


def _rounded(name: str) -> Callable[[Topology], Schedule]:
    """Whether owners round. Across nodes they do, and every node then holds the same; within a node the result is only
    passed on."""
    if name in HALVES:
        return _on_ranks(_in_halves(name, rounded=True))
    inner, outer = _pair(name)
    return lambda topology: hierarchical(name, topology, HALVES[inner], _in_halves(outer, rounded=True))


def _pair(name: str) -> Sequence[str]:
    """Return the schedules within nodes and across them."""
    return name.split(":")[1:] or ("ring", "ring")


def check_name(name: str, rounded: bool = False) -> None:
    """Check a schedule's name. Raises UsageError for an unknown name; with ``rounded`` also if no rank owns a sum."""
    kind, *pair = name.split(":")
    if not pair and name not in SCHEDULES:
        raise unknown_algorithm(name, SCHEDULES)
    if pair and (kind != HIERARCHICAL or len(pair) != 2):
        raise UsageError(f"unknown algorithm {name!r}: a pair is written hierarchical:INNER:OUTER")
    levels = ((sorted(HALVES), "within nodes"), (sorted(FLAT), "across nodes"))
    for part, (known, where) in zip(pair, levels, strict=False):
        if part not in known:
            raise UsageError(f"unknown algorithm {part!r} {where} in {name!r}: {nearest(part, known)}")
    owning = _pair(name)[1] if kind == HIERARCHICAL else name
    if rounded and owning not in HALVES:
        raise UsageError(
            f"{name!r} cannot use a wire that rounds: no rank owns a sum. Each rank adds its exact number to the "
            f"other's rounded one, so ranks end with different bits. Use an algorithm with owners: {', '.join(HALVES)}"
        )


def unknown_algorithm(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not among the known ones."""
    return UsageError(texts.UNKNOWN_ALGORITHM.format(name=name, hint=RENAMED.get(name) or nearest(name, known)))


def needs_nodes(name: str) -> bool:
    """Whether the schedule depends on the placement of ranks on nodes."""
    return name not in FLAT


def _half(name: str, size: int, goal: str, rounded: bool) -> Schedule:
    if goal not in GOALS:
        raise UsageError(f"unknown goal {goal!r}: {nearest(goal, GOALS)}")
    if name not in HALVES:
        raise UsageError(f"{name!r} is not made of two halves and has no {goal}. These have one: {', '.join(HALVES)}")
    half = HALVES[name][GOALS.index(goal) - 1](size)
    return compose.rounded(half) if rounded and goal == ALL_GATHER else half
