"""All-reduces in memory that the ranks of a node share, by their names: ``mapped`` within one node, ``routed`` over
several, or ``routed:OUTER`` with another schedule between nodes than a ring."""

from collections.abc import Callable, Sequence
from functools import cache

from ringtrain.collectives import texts
from ringtrain.collectives.algorithms import sliced
from ringtrain.collectives.catalogue import FLAT, check_name, make_schedule
from ringtrain.collectives.execution.fused_plan import TwoShotPlan, fuse, one_after_another
from ringtrain.collectives.execution.mapped import Mapped, on_host
from ringtrain.collectives.execution.reduction import Reduction, WireFormat
from ringtrain.collectives.execution.routed import LEAST_BYTES, Routed, make_piece, portions
from ringtrain.collectives.topology import Topology, placed
from ringtrain.errors import UsageError, nearest
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

MAPPED, ROUTED = "mapped", "routed"
AT_ONCE = 8  # arrays that a device's add_all takes
OUTER = "ring"  # between nodes, unless it is named
INSTEAD = {MAPPED: "sliced", ROUTED: "hierarchical"}  # over messages


class Unavailable(UsageError):
    """An algorithm that is there, but not for these ranks, or not for this memory."""


def is_shared(algorithm: str) -> bool:
    """Whether it works in memory that ranks share."""
    return algorithm.partition(":")[0] in INSTEAD


def check_shared(algorithm: str, wired: bool) -> None:
    """Raises UsageError where there is no such algorithm, or none with a wire that rounds if that is wanted."""
    kind, pair, outer = algorithm.partition(":")
    if pair and (kind != ROUTED or outer not in FLAT):
        raise UsageError(texts.UNKNOWN_OUTER(name=algorithm, hint=nearest(outer, FLAT)))
    if wired and kind == MAPPED:
        raise UsageError(texts.NO_MESSAGES(name=kind))
    check_name(outer or OUTER, wired)


def prepare_shared(
    transport: Transport,
    buffer,
    algorithm: str,
    combine: Callable,
    tag: int,
    segment_bytes: int,
    device,
    wire: WireFormat | None,
) -> Reduction:
    """As :func:`ringtrain.allreduce.catalogue.make_allreduce`. ``routed`` on one node is ``mapped``. Raises
    Unavailable."""
    why = unavailable(transport, buffer, algorithm, [tag])
    if why is not None:
        raise Unavailable(texts.CANNOT_RUN(algorithm=algorithm, why=why))
    lane, twins = transport.signal_counter(tag), transport.peer_views(buffer)
    fused = fused_plan(transport.local_size) if on_host(twins) else one_after_another(transport.local_size)
    if transport.nodes == 1:
        return Mapped(fused, transport, twins, lane, combine, device)
    outer = make_schedule(algorithm.partition(":")[2] or OUTER, transport.nodes, rounded=wire is not None)
    least = LEAST_BYTES // buffer.dtype.itemsize
    made = [
        make_piece(portion, fused, outer, transport, twins, combine, segment_bytes, wire, device)
        for portion in portions(topology_of(transport), transport.rank, buffer.size, least, tag)
    ]
    return Routed(made, transport, lane, device)


def unavailable(transport: Transport, buffer, algorithm: str, tags: Sequence[int]) -> str | None:
    """Why an algorithm in shared memory cannot run on this buffer under these tags; None where it can. Collective."""
    if algorithm == MAPPED and transport.nodes > 1:
        return texts.SEVERAL_NODES(nodes=transport.nodes, instead=ROUTED)
    lacking = transport.gather_json(_lacking(transport, buffer, tags))
    first = next(filter(None, lacking), None)
    alike = peers(rank for rank, what in enumerate(lacking) if what == first)
    return first and texts.ON_RANKS(why=first, peers=alike)


def _lacking(transport: Transport, buffer, tags: Sequence[int]) -> str | None:
    """What this rank lacks. Lanes are asked for whatever it is: that is collective over the node."""
    lanes = [transport.signal_counter(tag) for tag in tags]
    twins = transport.peer_views(buffer)
    if twins is None:
        return texts.NOT_SHARED_WHY(why=transport.apart) if transport.apart else texts.NOT_SHARED
    if not on_host(twins) and len(twins) > AT_ONCE:
        return texts.TOO_MANY_BUFFERS(limit=AT_ONCE, size=len(twins))
    return texts.NO_COUNTERS if None in lanes else None


def or_messages(transport: Transport, buffer, algorithm: str, tags: Sequence[int]) -> tuple[str, str | None]:
    """The algorithm; or, of one in shared memory that cannot run on this buffer under these tags, what comes nearest
    over messages, and a sentence that says so. Collective."""
    why = unavailable(transport, buffer, algorithm, tags) if is_shared(algorithm) else None
    if why is None:
        return algorithm, None
    instead = INSTEAD[algorithm.partition(":")[0]]
    return instead, texts.RUNS_INSTEAD(algorithm=algorithm, why=why, instead=instead)


@cache
def fused_plan(size: int) -> TwoShotPlan:
    """For the ranks of one node. Its chunks are as many."""
    return fuse("sliced", sliced.reduce_scatter(size), sliced.all_gather(size))


def topology_of(transport: Transport) -> Topology:
    """Which rank is on which node. Collective."""
    return placed(transport.gather_json(transport.node))
