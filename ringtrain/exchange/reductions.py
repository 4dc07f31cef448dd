"""Every way to all-reduce, by its name: the schedules of the catalogue over messages, and the MPI's own.

Whoever all-reduces (training, the benchmark, the Python door) asks here, and so has the same names and the same ways.
"""

from collections.abc import Callable

from ringtrain.collectives.catalogue import SCHEDULES, check_name, make_schedule, needs_nodes
from ringtrain.collectives.execute import SEGMENT_BYTES, Execution
from ringtrain.collectives.reduction import NATIVE, Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import placed
from ringtrain.exchange.guard import Guard
from ringtrain.transport.base import Transport

ALGORITHMS = (NATIVE, *SCHEDULES)


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
    guard: Guard | None = None,
) -> Reduction:
    """The all-reduce of ``buffer``, a flat array, in place. Collective: the same on all ranks.

    combine:       combine(a, b, y): y = a op b, elementwise
    op:            sum, max or min: what combine does, in the MPI's words
    tag:           tells its messages from those of others in flight
    segment_bytes: where messages are cut
    synchronize:   waits for what is still being computed in the buffer
    guard:         watches it, if given: then it also raises MismatchError, and StalledError with names

    Raises UsageError for a name that is not there.
    """
    if algorithm == NATIVE:
        reduction = Native(transport, buffer, op, synchronize)
    else:
        schedule = schedule_for(algorithm, transport)
        reduction = Execution(schedule, transport, buffer, combine, tag, segment_bytes, synchronize)
    return reduction if guard is None else guard.watch(reduction, op, buffer.dtype, buffer.size)


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
    if name != NATIVE:
        check_name(name)


def schedule_for(algorithm: str, transport: Transport) -> Schedule:
    """The schedule of that name for the ranks of this transport, on the nodes they are on; collective where the
    algorithm depends on nodes. Raises UsageError."""
    check_name(algorithm)
    if not needs_nodes(algorithm):
        return make_schedule(algorithm, transport.size)
    return make_schedule(algorithm, placed(transport.gather_json(transport.node)))
