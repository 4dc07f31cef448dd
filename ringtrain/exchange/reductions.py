"""Every way to all-reduce, by its name: the schedules of the catalogue over messages, the fused plans in shared memory,
and the MPI's own.

Whoever all-reduces (training, the benchmark, the Python door) asks here, and so has the same names and the same ways.
"""

from collections.abc import Callable
from functools import cache

from ringtrain.collectives import sliced
from ringtrain.collectives.catalogue import FLAT, SCHEDULES, check_name, make_schedule, needs_nodes
from ringtrain.collectives.execute import SEGMENT_BYTES, Execution
from ringtrain.collectives.fused import Fused, fuse
from ringtrain.collectives.mapped import Mapped
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.routed import LEAST_BYTES, Routed, make_piece, portions
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import Topology, placed
from ringtrain.errors import UsageError, nearest
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

NATIVE, MAPPED, ROUTED = "mpi", "mapped", "routed"
ALGORITHMS = (NATIVE, MAPPED, ROUTED, *SCHEDULES)
HIERARCHICAL = "hierarchical"
OUTER = "ring"  # of routed, between nodes, unless it is named: routed:OUTER


def _nothing() -> None:
    pass


def prepare(
    transport: Transport,
    buffer,
    algorithm: str,
    combine: Callable,
    *,
    op: str = "sum",
    tag: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
    synchronize: Callable[[], None] = _nothing,
) -> Reduction:
    """The all-reduce of ``buffer``, a flat array, in place. Collective: the same on all ranks.

    combine:       combine(a, b, y): y = a op b, elementwise
    op:            sum, max or min: what combine does, in the MPI's words
    tag:           tells its messages from those of others in flight
    segment_bytes: where messages are cut
    synchronize:   waits for what is still being computed in the buffer

    Raises UsageError for a name that is not there.
    """
    if algorithm == NATIVE:
        return Native(transport, buffer, op, synchronize)
    if is_shared(algorithm):
        check_algorithm(algorithm)
        topology = topology_of(transport)
        why = unavailable(transport, buffer, algorithm)
        if why is not None:
            raise Unavailable(f"{algorithm} cannot run here: {why}")
        fused, lane = fused_plan(transport.local_size), transport.lane(tag)
        twins = transport.twins(buffer)
        if transport.nodes == 1:
            return Mapped(fused, transport, twins, lane, combine, synchronize)
        outer = make_schedule(algorithm.partition(":")[2] or OUTER, transport.nodes)
        mine = portions(topology, transport.rank, buffer.size, LEAST_BYTES // buffer.itemsize, tag)
        made = [make_piece(portion, fused, outer, transport, twins, combine, segment_bytes) for portion in mine]
        return Routed(made, transport, lane, synchronize)
    schedule = schedule_for(algorithm, transport)
    return Execution(schedule, transport, buffer, combine, tag, segment_bytes, synchronize)


class Unavailable(UsageError):
    """An algorithm that is there, but not for these ranks, or not for this memory."""


def is_shared(algorithm: str) -> bool:
    """Whether it works in memory that ranks share."""
    return algorithm.partition(":")[0] in (MAPPED, ROUTED)


def unavailable(transport: Transport, buffer, algorithm: str) -> str | None:
    """Why an algorithm in shared memory cannot run on this buffer; None where it can. Collective."""
    if algorithm == MAPPED and transport.nodes > 1:
        return f"ranks are on {transport.nodes} nodes, and memory is shared within one: use {ROUTED}"
    apart = [rank for rank, lies in enumerate(transport.gather_json(transport.twins(buffer) is not None)) if not lies]
    return f"the buffer does not lie in memory that the ranks of a node share, on {peers(apart)}" if apart else None


def or_messages(transport: Transport, buffer, algorithm: str) -> tuple[str, str | None]:
    """The algorithm; or, of one in shared memory that cannot run on this buffer, what comes nearest over messages, and
    a sentence that says so. Collective."""
    why = unavailable(transport, buffer, algorithm) if is_shared(algorithm) else None
    if why is None:
        return algorithm, None
    instead = "sliced" if algorithm == MAPPED else HIERARCHICAL
    return instead, f"{algorithm} cannot run here: {why}; it is {instead} over messages instead"


@cache
def fused_plan(size: int) -> Fused:
    """For the ranks of one node. Its chunks are as many."""
    return fuse("sliced", sliced.reduce_scatter(size), sliced.all_gather(size))


class Native(Reduction):
    """The MPI's own all-reduce. It blocks where it is started: no MPI does its reductions behind one's back as fast."""

    algorithm = transport = NATIVE
    bytes_sent = None

    def __init__(self, transport: Transport, buffer, op: str, synchronize: Callable[[], None] = _nothing):
        self._reduce, self._buffer, self._op, self._synchronize = transport.native_allreduce, buffer, op, synchronize

    def start(self) -> None:
        self._synchronize()
        self._reduce(self._buffer, self._op)

    def test(self) -> bool:
        return True

    def wait(self, deadline_s: float) -> None:
        pass


def check_algorithm(name: str) -> None:
    """Raises UsageError for a name that is not there."""
    kind, pair, outer = name.partition(":")
    if not pair and name not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {name!r}: {nearest(name, ALGORITHMS)}")
    if pair and kind == ROUTED and outer not in FLAT:
        raise UsageError(f"unknown algorithm {outer!r} between nodes in {name!r}: {nearest(outer, FLAT)}")
    if pair and kind != ROUTED:
        check_name(name)


def choose(names: str) -> list[str]:
    """The algorithms of a list like "mpi,ring,routed:sliced", or all for "all". Raises UsageError for another name."""
    if names == "all":
        return list(ALGORITHMS)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        check_algorithm(name)
    return list(dict.fromkeys(chosen))


def topology_of(transport: Transport) -> Topology:
    """Which rank is on which node. Collective."""
    return placed(transport.gather_json(transport.node))


def schedule_for(algorithm: str, transport: Transport) -> Schedule:
    """The schedule of that name for the ranks of this transport, on the nodes they are on; collective where the
    algorithm depends on nodes. Raises UsageError."""
    check_name(algorithm)
    if not needs_nodes(algorithm):
        return make_schedule(algorithm, transport.size)
    return make_schedule(algorithm, topology_of(transport))
