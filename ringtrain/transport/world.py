"""How a process finds its world: the one place where an MPI is loaded, and where a failed launch is
explained."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ringtrain.errors import RankLostError, RingtrainError, TransportError, UsageError
from ringtrain.transport import texts
from ringtrain.transport.base import Transport
from ringtrain.transport.buffers import aligned_zeros
from ringtrain.transport.cuda_aware.decision import STAGED, CudaDecision, CudaTrial, Evidence, agree_on_way
from ringtrain.transport.cuda_aware.visibility import sees, sight
from ringtrain.transport.deadline import Deadline
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DeviceTransport
from ringtrain.transport.fault_tolerance import MARK, tolerant
from ringtrain.transport.launch_environment import check_without_mpi, check_world, local_claims, read_launch
from ringtrain.transport.mpi.openmpi import starting
from ringtrain.transport.threads.loopback import LoopbackWorld

JOIN_S = 120  # from the start of a replacement until it is one of the others
MAPS = Path("/proc/self/maps")
SEGMENT = r"/\S*/sm_segment\.\S+"
PART_S = 5.0  # it takes milliseconds where it returns at all


def connect(allocate=None, comm=None) -> Transport:
    """This process's end of the world: messages over MPI where one can be loaded, else a world of one rank.

    allocate: allocate(count, dtype) makes the arena's memory; host memory, shared by the node, unless given
    comm:     an mpi4py intracommunicator to be the world, of which a duplicate is used

    Raises UsageError where a launcher started several ranks that cannot find one another, and says what to
    do; and where ``comm`` is something else. Raises RankLostError where a rank dies meanwhile, and the others are told.
    """
    launch = read_launch(os.environ)
    try:
        with starting():
            MPI = _start()
    except (ImportError, RuntimeError) as error:
        check_without_mpi(launch, str(error).splitlines()[0])
        return LoopbackWorld(1).transport(0, allocate or aligned_zeros)
    from ringtrain.transport.mpi.messages import Messages, library
    from ringtrain.transport.mpi.requests import telling

    check_world(launch, MPI.COMM_WORLD.size, library())
    if comm is None:
        comm = MPI.COMM_WORLD
    elif not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise UsageError(texts.NOT_A_COMMUNICATOR(given=comm))
    try:
        with telling(texts.MEETING, comm):
            return Messages(comm, local_claims(os.environ), allocate)
    except RankLostError:
        raise RankLostError(texts.DIED_BEFORE_START(advice=texts.NOT_SURVIVED)) from None


def _start():
    """mpi4py's MPI, with an MPI that has started. Where ranks are to survive one another, that is done by a call which
    lets threads of Python run, as mpi4py's own does not: one of them looks whether a rank dies meanwhile. As mpi4py's
    own start does, it has the MPI return its errors. Raises ImportError, RuntimeError."""
    import mpi4py

    if not tolerant(os.environ) or "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        return MPI
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    from ringtrain.transport.mpi import libmpi

    if not libmpi.start():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI


class World:
    """This process's world, and those that follow it where ranks die.

    joined:   whether this process was started in place of a lost rank
    survived: what became of the last death; None before there was one
    dress:    dress(transport) → the one to be used
    patience_s: for how long this process may wait for the others at its start
    """

    def __init__(self, dress: Callable[[Transport], Transport], patience_s: float = JOIN_S):
        self.joined = os.environ.pop(MARK, None) is not None
        self.survived, self._bridge, self._dress = None, None, dress
        if self.joined:
            self._bare, self._bridge = _join(patience_s)
        else:
            self._bare = connect()
        self.transport = self._bare

    def enter(self) -> Transport:
        """The transport of this world, once. Collective."""
        self.transport = self._dress(self._bare)
        return self.transport

    def survive(self, facts: dict, order: Callable, wanted: int, command: Sequence[str], expired: Callable) -> None:
        """Leave a world that has lost a rank, for one of the survivors, as :mod:`ringtrain.transport.mpi.ulfm_recovery`
        does. Collective over these."""
        from ringtrain.transport.mpi.ulfm_recovery import survive

        self.survived = survive(self._bare, facts, order, wanted, command, expired)
        self.transport = self._bare = self.survived.transport
        self._bridge = self.survived.bridge

    def is_of_a_death(self, error: RingtrainError) -> bool:
        """What is left of a call that a death has broken may show as another error first."""
        if isinstance(error, RankLostError):
            return True
        return isinstance(error, TransportError) and not self._bare.why_not_fault_tolerant and self._bare.has_lost()

    def end(self, code: int, lost: bool = False) -> None:
        """After all is done: close. In a world that has lost a rank the process ends here, all ranks together: an MPI
        would wait for the dead. ``lost``: whether one has died whom nobody had to survive any more."""
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
        """From replacements. Theirs is a world without dead, which the MPI can end."""
        from mpi4py import MPI

        self.transport.close()
        self._bridge.take_down()
        if self.joined:
            MPI.Finalize()


def _join(patience_s: float):
    """As a replacement. One that the others do not wait for any more may hang in the very start of its MPI: the clock
    ends it, alone, and before whoever else would end it with a status, which ends the others."""
    with Deadline(min(JOIN_S, patience_s), -signal.SIGKILL):
        with starting():
            from ringtrain.transport.mpi.ulfm_recovery import join

        return join()


def remove_segments() -> None:
    """Files of Open MPI's shared memory, of which it leaves one for each process that ran alone. All ranks have opened
    theirs by now, and what they hold stays."""
    try:
        mapped = MAPS.read_text()
    except OSError:
        return
    for path in set(re.findall(SEGMENT, mapped)):
        with suppress(OSError):
            os.unlink(path)


def look() -> list[Evidence]:
    """What the MPI of this process says of device memory."""
    from ringtrain.transport.mpi import libmpi

    return libmpi.look()


def fault_tolerance() -> tuple[bool, bool]:
    """Whether the MPI of this process has ULFM, and was started with it."""
    from ringtrain.transport.mpi import libmpi

    return libmpi.fault_tolerance()


def choose_way(transport: Transport, asked: str, device: int, maker: str) -> CudaDecision:
    """How device memory is to go, the same on all ranks; collective, and before any of them uses its device, which may
    not take a second process.

    asked:  ``--mpi-cuda``: auto, direct or staged
    device: the number of this rank's
    maker:  "module:name" of what makes a Runtime of a number

    Raises DeviceError where direct was asked for and does not work.
    """
    if transport.size == 1:
        return CudaDecision(STAGED, "", ())
    return find_way(transport, asked, device, maker)


def find_way(transport: Transport, asked: str, device: int, maker: str) -> CudaDecision:
    """The same where one rank alone wants to know what several would do. There must be an MPI."""

    def attempt() -> CudaTrial:
        from ringtrain.transport.cuda_aware import trial
        from ringtrain.transport.mpi import libmpi

        return trial.attempt(libmpi.launcher(), libmpi.vendor(), maker, beside)

    told = transport.gather_json([transport.node, device, sees(os.environ)])
    beside = [number for node, number, _ in told if node == told[0][0]][:2]
    return agree_on_way(transport, asked, look, sight([(node, words) for node, _, words in told]), attempt)


def on_device(transport: Transport, runtime, choice: CudaDecision) -> Transport:
    """The same world, of spans in the memory of this rank's device, mapped by the ranks of a node where they can.
    Collective over the node."""
    return DeviceTransport(transport, runtime, choice.way, ipc=CudaIpc(transport, runtime))
