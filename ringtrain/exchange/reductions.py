"""Every way to all-reduce, by its name: the schedules of the catalogue over messages, and the MPI's own. ``auto`` is
the one among them that :mod:`ringtrain.exchange.choice` takes for the buffer's size.

Whoever all-reduces (training, the benchmark, the Python door) asks here, and so has the same names and the same ways.
"""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from ringtrain.collectives.catalogue import SCHEDULES, check_name, make_schedule, needs_nodes
from ringtrain.collectives.execute import SEGMENT_BYTES, Execution
from ringtrain.collectives.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import placed
from ringtrain.errors import UsageError, nearest
from ringtrain.exchange.choice import Choice, Here, choose
from ringtrain.exchange.machine import Layout, layout_of
from ringtrain.exchange.tuning import Table
from ringtrain.transport.base import Transport

NATIVE, AUTO = "mpi", "auto"
ALGORITHMS = (NATIVE, *SCHEDULES)
# The types that any MPI reduces. bfloat16 is not among them: kept as uint16, it would be added as whole numbers.
NATIVE_TYPES = ("float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


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
    dtype: str | None = None,
    tuning: Table | None = None,
) -> Reduction:
    """The all-reduce of ``buffer``, a flat array, in place. Collective: the same on all ranks. With ``auto`` the choice
    is made here, once: the reduction is named ``auto:ring`` and knows why.

    combine:       combine(a, b, y): y = a op b, elementwise
    op:            sum, max or min: what combine does, in the MPI's words
    tag:           tells its messages from those of others in flight
    segment_bytes: where messages are cut
    synchronize:   waits for what is still being computed in the buffer
    dtype:         the type's name where the array does not tell: bfloat16, kept as uint16
    tuning:        what ``auto`` chooses by, on rank 0: the others follow it

    Raises UsageError for a name that is not there.
    """
    how = (combine, op, tag, segment_bytes, synchronize)
    if algorithm != AUTO:
        return _prepare(transport, buffer, algorithm, *how)
    nbytes = buffer.size * buffer.dtype.itemsize
    choice = decide(transport, buffer, nbytes, dtype or np.dtype(buffer.dtype).name, op, tuning)
    made = _prepare(transport, buffer, choice.algorithm, *how)
    made.algorithm, made.why = auto_name(choice.algorithm), choice.why
    return made


def _prepare(transport, buffer, algorithm, combine, op, tag, segment_bytes, synchronize) -> Reduction:
    if algorithm == NATIVE:
        return Native(transport, buffer, op, synchronize)
    schedule = schedule_for(algorithm, transport)
    return Execution(schedule, transport, buffer, combine, tag, segment_bytes, synchronize)


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


def auto_name(algorithm: str) -> str:
    """What a chosen algorithm is called, so that a reader sees that it was chosen."""
    return f"{AUTO}:{algorithm}"


def decide(transport: Transport, span, nbytes: int, dtype: str, op: str, tuning: Table | None) -> Choice:
    """What ``auto`` takes for ``nbytes`` of such memory as ``span``. Collective: rank 0 chooses for all. ``tuning`` is
    looked at there alone."""
    here = consider(transport, span, dtype)
    own = asdict(choose(nbytes, dtype, op, here, tuning)) if transport.rank == 0 else None
    return Choice(**transport.gather_json(own)[0])


def consider(transport: Transport, span, dtype: str) -> Here:
    """Among what ``auto`` chooses for such memory; collective, the same on all ranks: what one rank cannot run, no rank
    does."""
    everyone = transport.gather_json([transport.node, refusals(transport, span, dtype)])
    refused = {name: reason for _, reasons in reversed(everyone) for name, reason in reasons.items()}
    candidates = [name for name in ALGORITHMS if name not in refused]
    return Here(layout_of([node for node, _ in everyone]), candidates, refused)


def anywhere(layout: Layout, dtype: str) -> Here:
    """The same for a layout that this world is not, as far as one can tell from afar."""
    refused = {name: reason for name in ALGORITHMS if (reason := _unfit(layout.ranks, layout.nodes, dtype, name))}
    return Here(layout, [name for name in ALGORITHMS if name not in refused], refused)


def refusals(transport: Transport, span, dtype: str) -> dict[str, str]:
    """Names that ``auto`` does not consider on this rank, each with the reason."""
    found = {name: runs_here(transport, span, dtype, name) for name in ALGORITHMS}
    return {name: reason for name, reason in found.items() if reason is not None}


def runs_here(transport: Transport, span, dtype: str, name: str) -> str | None:
    """None where ``auto`` may consider that algorithm for such memory and type, else why not."""
    return _unfit(transport.size, transport.nodes, dtype, name)


def _unfit(ranks: int, nodes: int, dtype: str, name: str) -> str | None:
    """What is known without asking the transport."""
    if name == NATIVE and ranks == 1:
        return "there is one rank"
    if name == NATIVE and dtype not in NATIVE_TYPES:
        return f"MPI has no {dtype}"
    if name in SCHEDULES and needs_nodes(name) and nodes == 1:
        return "there is one node"
    return None


def check_algorithm(name: str) -> None:
    """Raises UsageError for a name that is not there."""
    if ":" in name:
        check_name(name)
    elif name not in (AUTO, *ALGORITHMS):
        raise UsageError(f"unknown algorithm {name!r}: {nearest(name, (AUTO, *ALGORITHMS))}")


def schedule_for(algorithm: str, transport: Transport) -> Schedule:
    """The schedule of that name for the ranks of this transport, on the nodes they are on; collective where the
    algorithm depends on nodes. Raises UsageError."""
    check_name(algorithm)
    if not needs_nodes(algorithm):
        return make_schedule(algorithm, transport.size)
    return make_schedule(algorithm, placed(transport.gather_json(transport.node)))
