"""Fault tolerance as the launcher's environment allows it, and a way to end a job that the MPI's own abort does not
end.
"""

import fcntl
import os
import signal
import stat
import struct
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

START_TOLERANT = "start with `mpirun --with-ft ulfm`"
LAUNCHERS = ("prterun", "prted", "prte", "mpirun", "mpiexec")
MARK = "RINGTRAIN_REPLACES"  # in the environment of processes that start in place of lost ranks: these ranks' numbers
LET_OUT_S = 2.0  # a launcher reads at once
REJOIN_S = 120.0  # for the survivors to find one another; only the start of a Python takes a second
KILLED_S = 10.0  # within this time a launcher that was signalled to end has ended its ranks


def is_fault_tolerant(environ: Mapping[str, str]) -> bool:
    """Whether the launcher reports the death of a rank to the others instead of ending them."""
    return environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "enabled", "t", "y")


def why_not_fault_tolerant(environ: Mapping[str, str], library: str) -> str:
    """Return the reason why the death of a rank ends all of them here, and a remedy; empty if ranks can survive it."""
    if "Open MPI" not in library:
        return (
            f"this MPI, {library}, ends all ranks when one dies: use one with ULFM (Open MPI 5), and {START_TOLERANT}"
        )
    if not is_fault_tolerant(environ):
        return f"the launcher ends all ranks when one dies: {START_TOLERANT}"
    if environ.get("OMPI_MCA_pml", "ob1") != "ob1":
        return (
            f"messages use pml {environ['OMPI_MCA_pml']} (OMPI_MCA_pml, --mca pml), and ULFM needs ob1, without UCX: "
            "leave that option out"
        )
    return ""


def end_job() -> None:
    """End every rank of a fault-tolerant world, stopped ones too. Does not return.

    MPI_Abort ends none of them there, and the others wait for a rank that ends with a status of its own: so the
    launcher gets the signal to end.
    """
    wait_until_read()
    launcher = find_launcher(os.getppid())
    if launcher is not None:
        os.kill(launcher, signal.SIGTERM)
        time.sleep(KILLED_S)
    os.kill(os.getpid(), signal.SIGKILL)  # a death by a signal is one that the others hear of


def end_unseen() -> NoReturn:
    """End this process, a replacement, so that the others go on: an exit status would end them."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL ends the process")


def wait_until_read() -> None:
    """Return when the launcher has read this process's output from its pipe. The launcher learns of the job's end in
    another way, and its text about that would come first: Open MPI's text ends in a zero byte, after which no line
    begins.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):  # it is closed, or this interrupts a write
            stream.flush()
    until = time.monotonic() + LET_OUT_S
    while any(map(_unread, (1, 2))) and time.monotonic() < until:
        time.sleep(1e-3)


def _unread(descriptor: int) -> int:
    """Return the number of unread bytes in a pipe; 0 for other files."""
    count = struct.pack("i", 0)
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            count = fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return struct.unpack("i", count)[0]


def find_launcher(number: int) -> int | None:
    """Return the nearest ancestor of a process, itself included, that is a launcher."""
    while number > 1:
        name, parent = _process(number)
        if name in LAUNCHERS:
            return number
        number = parent
    return None


def _process(number: int) -> tuple[str, int]:
    """Return (name, number of the parent)."""
    try:
        with open(f"/proc/{number}/stat") as file:
            text = file.read()
    except OSError:
        return "", 0
    start, stop = text.index("("), text.rindex(")")
    return text[start + 1 : stop], int(text[stop + 1 :].split()[1])
