"""The world of a process: the one place that loads an MPI and explains a launch that failed."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import RankLostError, RingtrainError, TransportError, UsageError
from ringtrain.transport.base import Transport
from ringtrain.transport.buffers import aligned_zeros
from ringtrain.transport.cuda_aware import decision
from ringtrain.transport.deadline import Deadline
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DeviceTransport
from ringtrain.transport.fault_tolerance import MARK, REJOIN_S
from ringtrain.transport.launch_environment import check_without_mpi, check_world, read_launch
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.mpi.mpich import as_wanted
from ringtrain.transport.mpi.openmpi import LIBRARY_NAMED, starting

if TYPE_CHECKING:  # the module loads an MPI
    from ringtrain.transport.mpi.ulfm_recovery import Intercommunicator, RecoveredWorld

JOIN_S = 120  # from the start of a replacement until it is one of the others
MAPS = Path("/proc/self/maps")
SEGMENT = r"/\S*/sm_segment\.\S+"
PART_S = 5.0  # it takes milliseconds where it returns at all
_FORKED: list[bool] = []  # in a process that was forked after the MPI's start: the start is its parent's
os.register_at_fork(after_in_child=lambda: _FORKED.append("mpi4py.MPI" in sys.modules))


def connect(allocate=None, comm=None) -> Transport:
    """This process's end of the world: messages over MPI if one can be loaded, else a world of one rank.

    allocate: allocate(count, dtype) makes the arena's memory; the default is host memory, shared by the node
    comm:     an mpi4py intracommunicator, whose duplicate becomes the world

    Raises UsageError, with advice, if a launcher started several ranks that cannot find one another, and if ``comm`` is
    not an intracommunicator. Raises RankLostError if a rank dies meanwhile and the MPI reports it.
    """
    launch = read_launch(os.environ)
    if any(_FORKED):
        raise UsageError(
            "this process was forked after the MPI had started, whose ranks know its parent alone: start more ranks "
            "with mpirun, or fork before the first communicator"
        )
    try:
        with starting(), as_wanted():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        check_without_mpi(launch, str(error).splitlines()[-1 if LIBRARY_NAMED[0] in os.environ else 0])
        return Loopback(allocate or aligned_zeros)
    from ringtrain.transport.mpi.messages import Messages, mpi_library
    from ringtrain.transport.mpi.requests import naming_peers

    check_world(launch, MPI.COMM_WORLD.size, mpi_library())
    if comm is None:
        comm = MPI.COMM_WORLD
    elif not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise UsageError(
            f"{comm!r} is not a communicator of ranks: pass mpi4py's MPI.COMM_WORLD, a part of it, or none"
        )
    try:
        with naming_peers("meeting the other ranks", comm):
            return Messages(comm, allocate)
    except RankLostError:
        raise RankLostError(
            "a rank died before all ranks had started. --elastic survives only a later death: start the run again with "
            "the same command"
        ) from None


class World:
    """This process's world, and the worlds that follow it when ranks die.

    joined:   whether this process was started in place of a lost rank
    survived: the recovery from the last death; None before the first
    dress:    dress(transport) → the transport to use, such as one with a guard
    patience_s: for how long this process may wait for the others at its start
    """

    def __init__(self, dress: Callable[[Transport], Transport], patience_s: float = JOIN_S):
        mark = os.environ.pop(MARK, None)
        self.joined = mark is not None
        self._dress = dress
        self.survived: RecoveredWorld | None = None
        self._bridge: Intercommunicator | None = None
        self._bare: Transport
        if mark is not None:
            self._bare, self._bridge = _join(patience_s, mark)
        else:
            self._bare = connect()
        self.transport = self._bare

    def enter(self) -> Transport:
        """The transport of this world; call this once. Collective."""
        self.transport = self._dress(self._bare)
        return self.transport

    def survive(
        self,
        facts: dict,
        order: Callable | None,
        wanted: int,
        command: Sequence[str],
        expired: Callable,
        limit_s: float = REJOIN_S,
    ) -> None:
        """Leave a world that has lost a rank for a world of the survivors
        (:mod:`ringtrain.transport.mpi.ulfm_recovery`). Collective over the survivors."""
        from ringtrain.transport.mpi.messages import Messages
        from ringtrain.transport.mpi.ulfm_recovery import survive

        assert isinstance(self._bare, Messages), "only a world of an MPI outlives its ranks"
        recovered = survive(self._bare, facts, order, wanted, command, expired, limit_s)
        self.survived, self._bridge = recovered, recovered.bridge
        self.transport = self._bare = recovered.transport

    def is_of_a_death(self, error: RingtrainError) -> bool:
        """Whether a death caused the error: a call that a death has broken may raise another error first."""
        if isinstance(error, RankLostError):
            return True
        return isinstance(error, TransportError) and not self._bare.why_not_fault_tolerant and self._bare.has_lost()

    def end(self, code: int, lost: bool = False) -> None:
        """Close the world at the end of the command. If it has lost a rank, the process ends here: the MPI's own end
        would wait for the dead rank. ``lost``: whether a rank died after its work was done."""
        if self.survived is None and not self.joined and not lost:
            self.transport.close()
            remove_segments()
            return
        remove_segments()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            if self._bridge is not None:
                with Deadline(PART_S, code):
                    self._part()
        finally:
            os._exit(code)

    def _part(self) -> None:
        """Part from the replacements. Their own world has no dead rank, so its MPI can end."""
        from mpi4py import MPI

        from ringtrain.transport.mpi.messages import Messages

        assert isinstance(self._bare, Messages), "replacements are of an MPI"
        self._bare.close_groups()  # processes that have a communicator in common cannot part
        self.transport.close()
        if self._bridge is not None:
            self._bridge.take_down()
        if self.joined:
            MPI.Finalize()


def _join(patience_s: float, mark: str):
    """Join the survivors as a replacement. If they no longer wait, the start of the MPI may hang: the deadline ends
    this process by a signal, since an exit status of its own would end the others."""
    with Deadline(min(JOIN_S, patience_s), -signal.SIGKILL):
        with starting():
            from ringtrain.transport.mpi.ulfm_recovery import join_survivors

        return join_survivors(mark)


def remove_segments() -> None:
    """Remove the files of Open MPI's shared memory: it leaves one behind for each process that ran alone. All ranks
    have opened theirs by now, and their mappings stay."""
    try:
        mapped = MAPS.read_text()
    except OSError:
        return
    for path in set(re.findall(SEGMENT, mapped)):
        with suppress(OSError):
            os.unlink(path)


def look() -> list[decision.Evidence]:
    """The evidence of this process's MPI on device memory."""
    from ringtrain.transport.mpi import libmpi

    return libmpi.mpi_evidence()


def choose_way(transport: Transport, asked: str, device: int, maker: str) -> decision.CudaDecision:
    """The way of messages from device memory, the same on all ranks. Collective. Call it before any rank uses its
    device: a device may refuse a second process.

    asked:  ``--mpi-cuda``: auto, direct or staged
    device: the number of this rank's device
    maker:  "module:name" of the function that makes a Runtime from a number

    Raises DeviceError if direct was asked for and does not work.
    """
    if transport.size == 1:
        return decision.CudaDecision(decision.STAGED, "", ())
    return find_way(transport, asked, device, maker)


def find_way(transport: Transport, asked: str, device: int, maker: str) -> decision.CudaDecision:
    """Like :func:`choose_way`, but for one rank alone, too: the way that several ranks would take. Needs an MPI."""

    def attempt() -> decision.CudaTrial:
        from ringtrain.transport.cuda_aware import trial
        from ringtrain.transport.mpi import libmpi

        return trial.attempt(libmpi.launcher(), libmpi.vendor(), maker, beside)

    rank_devices = transport.gather_json([transport.node, device, decision.device_names(os.environ)])
    beside = [number for node, number, _ in rank_devices if node == rank_devices[0][0]][:2]
    return decision.agree_on_way(
        transport,
        asked,
        look,
        decision.visibility_evidence([(node, words) for node, _, words in rank_devices]),
        attempt,
    )


def on_device(transport: Transport, runtime, choice: decision.CudaDecision) -> Transport:
    """The transport for spans in the memory of this rank's device; the ranks of a node map them if they can. Collective
    over the node."""
    return DeviceTransport(transport, runtime, choice.way, ipc=CudaIpc(transport, runtime))
