"""The catalogue of all-reduces by name: the schedules over messages, two-shot programs in shared memory, streams
through shared memory, and the MPI's own. ``auto`` is the one among them that :mod:`ringtrain.allreduce.auto` selects
for the buffer's size.

Training, the benchmark and the Python API all use this catalogue, and so have the same names and the same algorithms.
"""

from dataclasses import asdict, replace

import numpy as np

from ringtrain.allreduce.auto import AlgorithmChoice, Candidates, select_algorithm
from ringtrain.allreduce.dtypes import NumberType
from ringtrain.allreduce.machine import RankLayout, rank_layout
from ringtrain.allreduce.tuning_table import Table
from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.catalogue import SCHEDULES, check_name, make_schedule, needs_nodes, unknown_algorithm
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import HOST, NATIVE, Combine, Reduction, ReductionDevice, WireFormat
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import (
    MAPPED,
    ROUTED,
    check_shared,
    is_shared,
    not_added,
    prepare_shared,
    topology_of,
    unavailable,
)
from ringtrain.collectives.stream import STREAM, cannot_stream, prepare_streamed
from ringtrain.errors import ConfigError, RankLostError, TransportError, UsageError
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Transport

AUTO = "auto"
ALGORITHMS = (NATIVE, MAPPED, STREAM, ROUTED, *SCHEDULES)
# The types that any MPI reduces. bfloat16 is not among them: kept as uint16, it would be added as whole numbers.
NATIVE_TYPES = ("float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def make_allreduce(
    transport: Transport,
    buffer: Array,
    algorithm: str,
    combine: Combine,
    *,
    op: str = "sum",
    tag: int = 0,
    segment_bytes: int | None = None,
    device: ReductionDevice = HOST,
    wire: WireFormat | None = None,
    dtype: str | None = None,
    tuning: Table | None = None,
    guard: Guard | None = None,
    content: str = "",
) -> Reduction:
    """Return the all-reduce of ``buffer``, a flat array, in place. Collective: the same on all ranks. With ``auto`` the
    choice is made here, once: the reduction is then named ``auto:ring`` and has its reason.

    combine:       combine(a, b, y): y = a op b, elementwise
    op:            the operation of combine in the MPI's terms: sum, max or min
    tag:           separates its messages from others in flight
    segment_bytes: longest segment of a message; None: as suits the nodes
    device:        the device of combine and wire (:class:`ringtrain.collectives.execution.execute.Execution`)
    wire:          packs the messages (:mod:`ringtrain.allreduce.wire_formats`); None sends them unpacked. Every rank
                   ends with the same bits, all of them numbers of the wire
    dtype:         the type's name, if the array does not have it: bfloat16, kept as uint16
    tuning:        the tuning table for ``auto`` on rank 0: the others follow it
    guard:         watches the all-reduce, if given: then MismatchError, and StalledError with names, are also raised
    content:       the buffer's content, in words, the same on all ranks: for the guard, and for streams

    Raises UsageError for an unknown name, and for numbers that a wire cannot carry.
    """
    check_algorithm(algorithm, wire is not None)
    dtype = dtype or np.dtype(buffer.dtype).name
    if wire is not None:
        _check_wire(wire, dtype, op)
    segment = segment_bytes or segment_for(transport)

    def prepare(name: str) -> Reduction:
        if name == NATIVE:
            return NativeAllReduce(transport, buffer, op, device)
        if name == STREAM:
            return prepare_streamed(transport, buffer, op, dtype, content)
        if is_shared(name):
            return prepare_shared(transport, buffer, name, combine, op, dtype, tag, segment, device, wire)
        schedule = schedule_for(name, transport, wire is not None)
        return Execution(schedule, transport, buffer, combine, tag, segment, device, wire=wire)

    if algorithm == AUTO:
        nbytes = buffer.size * buffer.dtype.itemsize
        choice = agree_on_algorithm(transport, buffer, nbytes, dtype, op, tuning, wire is not None, tag)
        reduction = prepare(choice.algorithm)
        reduction.algorithm, reduction.why = auto_name(choice.algorithm), choice.why
    else:
        reduction = prepare(algorithm)
    return reduction if guard is None else guard.watch(reduction, op, buffer.dtype, buffer.size, content=content)


class NativeAllReduce(Reduction):
    """The MPI's own all-reduce. It blocks at its start: no MPI runs its reductions in the background as fast."""

    algorithm = transport = NATIVE
    bytes_sent, blocks = None, True

    def __init__(self, transport: Transport, buffer: Array, op: str, device: ReductionDevice = HOST):
        self._reduce, self._buffer, self._op, self._device = transport.native_allreduce, buffer, op, device

    def start(self) -> None:
        self._device.mark().wait()
        self._reduce(self._buffer, self._op)

    def test(self) -> bool:
        return True

    def wait(self, deadline_s: float) -> None:
        pass


def auto_name(algorithm: str) -> str:
    """Return the name of an algorithm that auto chose, with the choice visible."""
    return f"{AUTO}:{algorithm}"


# ── candidates of auto ────────────────────────────────────────────────────────────────────────────────────────
def agree_on_algorithm(
    transport: Transport,
    span,
    nbytes: int,
    dtype: str,
    op: str,
    tuning: Table | None,
    wired: bool = False,
    tag: int = 0,
) -> AlgorithmChoice:
    """Return the choice of ``auto`` for ``nbytes`` in memory such as ``span``. Collective: rank 0 chooses for all, and
    only its ``tuning`` counts.
    """
    eligible = find_candidates(transport, span, dtype, wired, tag)
    choice = asdict(select_algorithm(nbytes, dtype, op, eligible, tuning)) if transport.rank == 0 else None
    return AlgorithmChoice(**transport.gather_json(choice)[0])


def find_candidates(transport: Transport, span, dtype: str, wired: bool = False, tag: int = 0) -> Candidates:
    """Return the candidates of ``auto`` for memory such as ``span``. Collective, the same on all ranks: an algorithm
    that one rank cannot run is none. ``wired``: messages are packed. ``tag``: of the reduction.
    """
    eligible = static_candidates(rank_layout(transport.gather_json(transport.node)), dtype, wired)
    eligible = replace(eligible, on_device=not isinstance(span, np.ndarray))
    refusals = {name: unavailable(transport, span, name, [tag]) for name in eligible.candidates if is_shared(name)}
    if STREAM in eligible.candidates:
        refusals[STREAM] = cannot_stream(transport, span, dtype)
    return _without(eligible, {name: reason for name, reason in refusals.items() if reason})


def static_candidates(layout: RankLayout, dtype: str, wired: bool = False) -> Candidates:
    """Return the candidates as far as they are known without asking a transport."""
    refusals = {name: _unfit(layout, dtype, wired, name) for name in ALGORITHMS}
    return _without(Candidates(layout, ALGORITHMS, {}), {name: reason for name, reason in refusals.items() if reason})


def _without(eligible: Candidates, refused: dict[str, str]) -> Candidates:
    names = [name for name in eligible.candidates if name not in refused]
    return replace(eligible, candidates=names, refused=eligible.refused | refused)


def _unfit(layout: RankLayout, dtype: str, wired: bool, name: str) -> str | None:
    """Return the reason why ``auto`` does not consider an algorithm; None if it may."""
    if layout.ranks == 1 and (name in (NATIVE, STREAM) or is_shared(name)):
        return "there is one rank"
    if layout.nodes == 1 and (name == ROUTED or (name in SCHEDULES and needs_nodes(name))):
        return "there is one node"
    if layout.nodes > 1 and name in (MAPPED, STREAM):
        return f"there are {layout.nodes} nodes"
    if name == NATIVE and dtype not in NATIVE_TYPES:
        return f"MPI has no {dtype}"
    if name in (MAPPED, STREAM) and (why := not_added(dtype)):
        return why
    try:
        check_algorithm(name, wired)
    except UsageError as error:
        return str(error)
    return None


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────
def parse_algorithms(names: str) -> list[str]:
    """Return the algorithms of a list like "mpi,ring,routed:sliced", or all for "all": ``auto`` is included only by
    name. Raises UsageError for an unknown name.
    """
    if names == "all":
        return list(ALGORITHMS)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        check_algorithm(name)
    return list(dict.fromkeys(chosen))


def check_algorithm(name: str, wired: bool = False) -> None:
    """Check the name of an algorithm. Raises UsageError for an unknown one, and with ``wired`` for one without
    messages.
    """
    if name == AUTO:
        return
    known = {AUTO, *ALGORITHMS, *SCHEDULES}  # a schedule joins by being in the catalogue
    kind, *pair = name.split(":")
    if not pair and name not in known:
        raise unknown_algorithm(name, known)
    if pair and kind in (MAPPED, STREAM):
        raise UsageError(f"unknown algorithm {name!r}: {kind} has no variants, give {kind}")
    if is_shared(name):
        check_shared(name, wired)
    elif name == STREAM and wired:
        raise UsageError(texts.NO_MESSAGES.format(name=name))
    elif name not in (NATIVE, STREAM):
        check_name(name, wired)
    elif wired:
        raise UsageError(
            f"{NATIVE!r}, the MPI's own all-reduce, sends a buffer without packing: leave the wire out, or name a "
            "schedule"
        )


def _check_wire(wire: WireFormat, dtype: str, op: str) -> None:
    if dtype != "float32":
        raise ConfigError(f"a wire of {wire.name} carries float32, and this is {dtype}: leave the wire out")
    if op != "sum":
        raise UsageError(f"a wire of {wire.name} carries sums, and this is {op}: leave the wire out")


def schedule_for(algorithm: str, transport: Transport, rounded: bool = False) -> Schedule:
    """Return the schedule of that name for the ranks of this transport on their nodes; collective if the algorithm
    depends on nodes. ``rounded``: for a wire that rounds. Raises UsageError.
    """
    check_name(algorithm, rounded)
    nodes = topology_of(transport) if needs_nodes(algorithm) else transport.size
    return make_schedule(algorithm, nodes, rounded=rounded)


def check_native(transport: Transport, numbers: NumberType, op: str) -> None:
    """Try the MPI's all-reduce on one element. Collective. Raises UsageError. ``op`` is sum, max or min."""
    # Open MPI has no such type, takes the bits for whole numbers, adds those, and reports success.
    if numbers.name == "bfloat16":
        raise UsageError("MPI has no bfloat16: it would add the bits as integers")
    try:
        transport.native_allreduce(np.zeros(1, numbers.storage), op)
    except RankLostError:
        raise
    except (TransportError, KeyError) as error:  # KeyError: mpi4py found no MPI type for the elements
        raise UsageError(f"MPI does not reduce {numbers.name} by {op}: {error}") from error
