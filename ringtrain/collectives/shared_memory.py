"""All-reduces in memory that the ranks of a node share, by name: ``mapped`` within one node; ``routed`` over several,
or ``routed:OUTER`` with a schedule other than the ring between nodes.
"""

from collections.abc import Sequence
from functools import cache

from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.algorithms import sliced
from ringtrain.collectives.catalogue import FLAT, check_name, make_schedule
from ringtrain.collectives.execution.mapped import AT_ONCE, make_mapped, on_host
from ringtrain.collectives.execution.node_program import NodeProgram, one_pass_program, two_shot_program
from ringtrain.collectives.execution.reduction import Combine, Reduction, ReductionDevice, WireFormat
from ringtrain.collectives.execution.routed import LEAST_BYTES, Routed, make_pipeline, slice_segments
from ringtrain.collectives.topology import Topology, topology_from_nodes
from ringtrain.errors import UsageError, nearest
from ringtrain.ops.cpu.mapped import TYPES
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

MAPPED, ROUTED = "mapped", "routed"
NOT_SHARED = "the buffer is not in memory that the ranks of a node share"
OUTER = "ring"  # between nodes, unless it is named
INSTEAD = {MAPPED: "sliced", ROUTED: "hierarchical"}  # over messages


class Unavailable(UsageError):
    """A known algorithm that cannot run on these ranks, or on this memory."""


def is_shared(algorithm: str) -> bool:
    """Whether the algorithm works in memory that ranks share."""
    return algorithm.partition(":")[0] in INSTEAD


def check_shared(algorithm: str, wired: bool) -> None:
    """Check the name of an algorithm in shared memory. Raises UsageError if it is unknown, or if ``wired`` and it has
    no messages to round."""
    kind, pair, outer = algorithm.partition(":")
    if pair and outer not in FLAT:
        raise UsageError(
            f"unknown algorithm {algorithm!r}: routed:OUTER names the algorithm between nodes: {nearest(outer, FLAT)}"
        )
    if wired and kind == MAPPED:
        raise UsageError(texts.NO_MESSAGES.format(name=kind))
    check_name(outer or OUTER, wired)


def prepare_shared(
    transport: Transport,
    buffer: Array,
    algorithm: str,
    combine: Combine,
    op: str,
    dtype: str,
    tag: int,
    segment_bytes: int,
    device: ReductionDevice,
    wire: WireFormat | None,
) -> Reduction:
    """Prepare a reduction as :func:`ringtrain.allreduce.catalogue.make_allreduce` does. ``routed`` on one node is
    ``mapped``. Raises Unavailable."""
    why = unavailable(transport, buffer, algorithm, [tag])
    counter, views = transport.signal_counter(tag), transport.peer_views(buffer)
    if why is not None or counter is None or views is None:
        raise Unavailable(texts.CANNOT_RUN.format(algorithm=algorithm, why=why))
    program = node_program(transport.local_size) if on_host(views) else one_pass_program(transport.local_size)
    if transport.nodes == 1:
        if why := not_added(dtype):
            raise Unavailable(texts.CANNOT_RUN.format(algorithm=algorithm, why=why))
        return make_mapped(program, transport, views, counter, op, dtype, device)
    outer = make_schedule(algorithm.partition(":")[2] or OUTER, transport.nodes, rounded=wire is not None)
    least = LEAST_BYTES // buffer.dtype.itemsize
    pipelines = [
        make_pipeline(segment, program, outer, transport, views, combine, segment_bytes, wire, device)
        for segment in slice_segments(topology_of(transport), transport.rank, buffer.size, least, tag)
    ]
    return Routed(pipelines, transport, counter, device)


def unavailable(transport: Transport, buffer: Array, algorithm: str, tags: Sequence[int]) -> str | None:
    """Return the reason why an algorithm in shared memory cannot run on this buffer under these tags; None if it can.
    Collective."""
    if algorithm == MAPPED and transport.nodes > 1:
        return f"ranks are on {transport.nodes} nodes, and memory is shared within one: use {ROUTED}"
    lacking = transport.gather_json(_lacking(transport, buffer, tags))
    first = next(filter(None, lacking), None)
    alike = peers(rank for rank, what in enumerate(lacking) if what == first)
    return first and f"{first}, on {alike}"


def not_added(dtype: str) -> str | None:
    """Return the reason why ``mapped`` does not take elements of this type; None if it does."""
    return None if dtype in TYPES else texts.NOT_ADDED.format(known=", ".join(TYPES), dtype=dtype)


def _lacking(transport: Transport, buffer: Array, tags: Sequence[int]) -> str | None:
    """Return the reason of this rank. It always asks for counters, because that is collective over the node."""
    counters = [transport.signal_counter(tag) for tag in tags]
    views = transport.peer_views(buffer)
    if views is None:
        return ": ".join(filter(None, (NOT_SHARED, transport.why_not_shared)))
    if not on_host(views) and len(views) > AT_ONCE:
        return f"a device adds up the buffers of {AT_ONCE} ranks at once, and the node has {len(views)}"
    return "shared memory has no room for the counters that ranks wait on" if None in counters else None


def or_nearest_over_messages(
    transport: Transport, buffer: Array, algorithm: str, tags: Sequence[int]
) -> tuple[str, str | None]:
    """Return the algorithm and None; or, if it needs shared memory that this buffer does not have, the nearest
    algorithm over messages and a sentence about it. Collective."""
    why = unavailable(transport, buffer, algorithm, tags) if is_shared(algorithm) else None
    if why is None:
        return algorithm, None
    instead = INSTEAD[algorithm.partition(":")[0]]
    return instead, f"{algorithm} cannot run here: {why}; {instead} over messages runs instead"


@cache
def node_program(size: int) -> NodeProgram:
    """Return the two-shot program for the ``size`` ranks of one node, with as many chunks."""
    return two_shot_program("sliced", sliced.reduce_scatter(size), sliced.all_gather(size))


def topology_of(transport: Transport) -> Topology:
    """Return the topology of the transport's ranks. Collective."""
    return topology_from_nodes(transport.gather_json(transport.node))
