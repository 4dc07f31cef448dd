"""Every schedule by its name."""

from collections.abc import Callable

from ringtrain.collectives import butterfly, circulant, double_tree, ring, sliced, star, tree
from ringtrain.collectives.hierarchical import Builder, hierarchical
from ringtrain.collectives.recursive_doubling import recursive_doubling
from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Schedule
from ringtrain.collectives.topology import Topology, even
from ringtrain.errors import UsageError, nearest

# Those that do not care for nodes: all-reduces, and the halves of those that have two.
FLAT: dict[str, Builder] = {
    "ring": ring.ring,
    "tree": tree.tree,
    "double-tree": double_tree.double_tree,
    "butterfly": butterfly.butterfly,
    "circulant": circulant.circulant,
    "recursive-doubling": recursive_doubling,
    "star": star.star,
    "sliced": sliced.sliced,
}
HALVES: dict[str, tuple[Builder, Builder]] = {
    "ring": (ring.reduce_scatter, ring.all_gather),
    "tree": (tree.reduce, tree.broadcast),
    "double-tree": (double_tree.reduce, double_tree.broadcast),
    "butterfly": (butterfly.reduce_scatter, butterfly.all_gather),
    "circulant": (circulant.reduce_scatter, circulant.all_gather),
    "star": (star.reduce, star.broadcast),
    "sliced": (sliced.reduce_scatter, sliced.all_gather),
}
# Within nodes, and across them. Any other pair is named hierarchical:INNER:OUTER.
PAIRS: dict[str, tuple[str, str]] = {"hierarchical": ("ring", "ring"), "hierarchical-leader": ("tree", "ring")}


def _on_ranks(builder: Builder) -> Callable[[Topology], Schedule]:
    return lambda topology: builder(topology.size)


def _on_nodes(name: str, inner: str, outer: str) -> Callable[[Topology], Schedule]:
    return lambda topology: hierarchical(name, topology, HALVES[inner], FLAT[outer])


SCHEDULES: dict[str, Callable[[Topology], Schedule]] = {
    **{name: _on_ranks(builder) for name, builder in FLAT.items()},
    **{name: _on_nodes(name, *pair) for name, pair in PAIRS.items()},
}
GOALS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)


def make_schedule(name: str, where: Topology | int, goal: str = ALL_REDUCE) -> Schedule:
    """The schedule of that name for ranks on nodes; or for so many ranks, on one node if it matters.

    Raises UsageError for a name that is not there, and for a goal that the schedule has no part for.
    """
    check_name(name)
    topology = even(where) if isinstance(where, int) else where
    if goal != ALL_REDUCE:
        return _half(name, topology.size, goal)
    builder = SCHEDULES[name] if name in SCHEDULES else _on_nodes(name, *name.split(":")[1:])
    return builder(topology)


def check_name(name: str) -> None:
    """Raises UsageError for a name that is not there."""
    kind, *pair = name.split(":")
    if not pair and name not in SCHEDULES:
        raise UsageError(f"unknown algorithm {name!r}: {nearest(name, SCHEDULES)}")
    if pair and (kind != "hierarchical" or len(pair) != 2):
        raise UsageError(f"unknown algorithm {name!r}: a pair is written hierarchical:INNER:OUTER")
    for part, known, place in zip(pair, (HALVES, FLAT), ("within nodes", "across nodes"), strict=False):
        if part not in known:
            raise UsageError(f"unknown algorithm {part!r} {place} in {name!r}: {nearest(part, known)}")


def needs_nodes(name: str) -> bool:
    """Whether the schedule depends on which rank runs on which node."""
    return name not in FLAT


def _half(name: str, size: int, goal: str) -> Schedule:
    if goal not in GOALS:
        raise UsageError(f"unknown goal {goal!r}: {nearest(goal, GOALS)}")
    if name not in HALVES:
        raise UsageError(f"{name!r} is not made of two halves, so that it has no {goal}: {', '.join(HALVES)} have one")
    return HALVES[name][GOALS.index(goal) - 1](size)
