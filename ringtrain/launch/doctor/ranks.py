"""Checks of what the ranks do to one another: additions from afar, reading one another's memory, dying; and whether
their clocks agree."""

import ctypes
import os
import statistics
import time

import numpy as np

from ringtrain.errors import TransportError
from ringtrain.humanize import plural
from ringtrain.launch.doctor.doctor import OK, WARN, Line, Visit
from ringtrain.transport.world import fault_tolerance

TURNS = 5
APART_S = 1.0  # of clocks: what the stamps of logs, and a job's end, may be wrong by
ONE_SIDED = "OMPI_MCA_osc"


def one_sided(visit: Visit) -> list[Line]:
    """Whether all ranks add to numbers of rank 0, and take tickets from them; collective."""
    transport = visit.transport
    advice = "--asynchronous needs them: try another OMPI_MCA_osc (ompi_info lists them), or another MPI"
    try:
        tally = transport.tally(2)
        tally.add(0, np.ones(1))
        ticket = tally.take(1, 1.0)
        transport.barrier()
        added, taken = tally.read().tolist()
    except TransportError as error:
        return [Line(WARN, "one-sided", str(error), advice)]
    tickets = sorted(transport.gather_json(ticket))
    if (added, taken) != (transport.size, transport.size) or tickets != list(range(transport.size)):
        text = f"{plural(transport.size, 'rank')} each added 1, and found {added:g}; tickets are {tickets[:8]}"
        return [Line(WARN, "one-sided", f"windows of the MPI do not add up: {text}", advice)]
    setting = visit.environ.get(ONE_SIDED)
    return [Line(OK, "one-sided", f"windows of the MPI add up{f', {ONE_SIDED}={setting}' if setting else ''}")]


# ── reading one another's memory ──────────────────────────────────────────────────────────────────────────────────
class Piece(ctypes.Structure):
    """``struct iovec``"""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def single_copy(visit: Visit) -> list[Line]:
    """Whether a rank reads the memory of the next one of its node, as MPIs do for large messages (CMA); collective."""
    transport = visit.transport
    if "no MPI" in transport.describe():
        return []
    token = np.frombuffer(os.urandom(8), np.uint8)
    every = transport.gather_json([os.getpid(), token.ctypes.data, token.tobytes().hex()])
    mates = transport.neighbours
    pid, address, wanted = every[mates[(mates.index(transport.rank) + 1) % len(mates)]]
    why = "" if len(mates) == 1 else read_from(pid, address, bytes.fromhex(wanted))
    transport.barrier()  # until here the token stays
    if len(mates) == 1:
        return [Line(OK, "single copy", "there is one rank on this node")]
    if not why:
        return [Line(OK, "single copy", "ranks of a node read one another's memory: large messages are copied once")]
    scope = visit.root / "proc/sys/kernel/yama/ptrace_scope"
    told = f", kernel.yama.ptrace_scope is {scope.read_text().strip()}" if scope.is_file() else ""
    advice = "the MPI copies large messages twice: sysctl kernel.yama.ptrace_scope=0; docker --cap-add SYS_PTRACE"
    return [Line(WARN, "single copy", f"a rank cannot read another's memory ({why}{told})", advice)]


def read_from(pid: int, address: int, wanted: bytes) -> str:
    """Read so many bytes of another process; why that failed, or empty."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "process_vm_readv", None)
    if function is None:
        return "no process_vm_readv here"
    got = (ctypes.c_char * len(wanted))()
    here, there = Piece(ctypes.addressof(got), len(wanted)), Piece(address, len(wanted))
    one = ctypes.c_ulong(1)
    function.restype = ctypes.c_ssize_t
    function.argtypes = [ctypes.c_int, *[ctypes.POINTER(Piece), ctypes.c_ulong] * 2, ctypes.c_ulong]
    count = function(pid, ctypes.byref(here), one, ctypes.byref(there), one, 0)
    if count < 0:
        return os.strerror(ctypes.get_errno())
    return "" if got.raw == wanted else "what was read is not what is there: another container's process?"


# ── dying, and clocks ─────────────────────────────────────────────────────────────────────────────────────────────
def faults(visit: Visit) -> list[Line]:
    """Whether survivors can go on after a rank has died."""
    if "no MPI" in visit.transport.describe():
        return []
    built, started = fault_tolerance()
    checkpoint = "after a rank's death a run goes on from its checkpoint: --resume auto"
    if not built:
        return [Line(OK, "fault tolerance", f"this MPI has no ULFM, so no --elastic; {checkpoint}")]
    if not started:
        advice = "for --elastic: mpirun --with-ft ulfm"
        return [Line(OK, "fault tolerance", f"ULFM is built in, and off; {checkpoint}", advice)]
    way = visit.environ.get("OMPI_MCA_pml", "ob1")
    if way != "ob1":
        advice = "ULFM goes by ob1 alone, not over UCX: unset OMPI_MCA_pml, or start without --with-ft ulfm"
        return [Line(WARN, "fault tolerance", f"ULFM is on, and messages go by pml {way}, so no --elastic", advice)]
    return [Line(OK, "fault tolerance", "ULFM is on: with --elastic survivors go on after a rank's death")]


def clocks(visit: Visit) -> list[Line]:
    """How far the clocks of nodes are apart; collective."""
    transport = visit.transport
    if transport.nodes == 1:
        return []
    turns = []
    for _ in range(TURNS):
        transport.barrier()
        turns.append(transport.gather_json(time.time()))
    behind = [statistics.median(turn[rank] - turn[0] for turn in turns) for rank in range(transport.size)]
    hosts = transport.gather_json(visit.host)
    worst = max(range(transport.size), key=lambda rank: abs(behind[rank]))
    text = f"within {max(map(abs, behind)) * 1e3:.2g} ms of {hosts[0]}'s"
    if abs(behind[worst]) > APART_S:
        text = f"that of {hosts[worst]} is {abs(behind[worst]):.1f} s {'ahead of' if behind[worst] > 0 else 'behind'}"
        advice = "logs and a job's end go by them: have NTP or chrony on every node"
        return [Line(WARN, "clocks", f"{text} {hosts[0]}'s", advice)]
    return [Line(OK, "clocks", text)]
