"""Every way to all-reduce, by its name: the schedules of the catalogue over messages, the fused plans in shared memory,
and the MPI's own.

Whoever all-reduces (training, the benchmark, the Python door) asks here, and so has the same names and the same ways.
"""

from collections.abc import Callable

from ringtrain.collectives.catalogue import SCHEDULES, check_name, make_schedule, needs_nodes
from ringtrain.collectives.execute import SEGMENT_BYTES, Execution
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.wire import Wire
from ringtrain.errors import UsageError, nearest
from ringtrain.exchange.shared import MAPPED, ROUTED, check_shared, is_shared, prepare_shared, topology_of
from ringtrain.transport.base import Transport

NATIVE = "mpi"
ALGORITHMS = (NATIVE, MAPPED, ROUTED, *SCHEDULES)


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
    wire: Wire | None = None,
) -> Reduction:
    """The all-reduce of ``buffer``, a flat array, in place. Collective: the same on all ranks.

    combine:       combine(a, b, y): y = a op b, elementwise
    op:            sum, max or min: what combine does, in the MPI's words
    tag:           tells its messages from those of others in flight
    segment_bytes: where messages are cut
    synchronize:   waits for what is still being computed in the buffer
    wire:          how messages are packed (:mod:`ringtrain.exchange.wires`); None: they are not. Every rank ends with
                   the same bits, all of them numbers of the wire

    Raises UsageError for a name that is not there, and for what a wire cannot carry.
    """
    check_algorithm(algorithm, wire is not None)
    if algorithm == NATIVE:
        return Native(transport, buffer, op, synchronize)
    if wire is not None:
        _check_wire(wire, str(buffer.dtype), op)
    if is_shared(algorithm):
        return prepare_shared(transport, buffer, algorithm, combine, tag, segment_bytes, synchronize, wire)
    schedule = schedule_for(algorithm, transport, wire is not None)
    return Execution(schedule, transport, buffer, combine, tag, segment_bytes, synchronize, wire=wire)


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


def choose(names: str) -> list[str]:
    """The algorithms of a list like "mpi,ring,routed:sliced", or all for "all". Raises UsageError for another name."""
    if names == "all":
        return list(ALGORITHMS)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        check_algorithm(name)
    return list(dict.fromkeys(chosen))


def check_algorithm(name: str, wired: bool = False) -> None:
    """Raises UsageError for a name that is not there, and for one that has no use for a wire where that is wanted."""
    if ":" not in name and name not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {name!r}: {nearest(name, ALGORITHMS)}")
    if is_shared(name):
        check_shared(name, wired)
    elif name != NATIVE:
        check_name(name, wired)
    elif wired:
        raise UsageError(
            f"{NATIVE!r}, the MPI's own all-reduce, sends a buffer as it is: leave the wire out, or name a schedule"
        )


def _check_wire(wire: Wire, dtype: str, op: str) -> None:
    if dtype != "float32":
        raise UsageError(f"a wire of {wire.name} carries float32, and this is {dtype}: leave the wire out")
    if op != "sum":
        raise UsageError(f"a wire of {wire.name} carries sums, and this is {op}: leave the wire out")


def schedule_for(algorithm: str, transport: Transport, rounded: bool = False) -> Schedule:
    """The schedule of that name for the ranks of this transport, on the nodes they are on; collective where the
    algorithm depends on nodes. ``rounded``: for a wire that rounds. Raises UsageError."""
    check_name(algorithm, rounded)
    nodes = topology_of(transport) if needs_nodes(algorithm) else transport.size
    return make_schedule(algorithm, nodes, rounded=rounded)
