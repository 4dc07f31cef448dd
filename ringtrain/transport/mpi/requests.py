"""Messages in flight over MPI, and their errors: a TransportError that names the peers it concerns, or a RankLostError
if another rank has died.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from mpi4py import MPI

from ringtrain.errors import RankLostError, TransportError
from ringtrain.transport.base import Handle, Moves, TestedHandle
from ringtrain.transport.buffers import Raw, as_bytes, message_bounds
from ringtrain.transport.fault_tolerance import is_fault_tolerant
from ringtrain.transport.waiting import Patience, peers

LOST = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
HEARD_S = 1.0  # by when a death is known here that an error has come of
# Operations in flight: the MPI writes to their arrays even when nobody waits any more, after StalledError or Ctrl-C.
IN_FLIGHT: set[Handle] = set()


def transport_error(what: str, error: MPI.Exception, comm) -> TransportError:
    """Return an MPI error as a TransportError that names the operation and the peers."""
    text = error.Get_error_string()
    if is_fault_tolerant(os.environ) and (error.Get_error_class() in LOST or _hears_of_death(comm)):
        return RankLostError(
            f"{_who_died(comm)} died (seen while {what}: {text}). Continue from the last checkpoint with --resume "
            "auto; with --elastic the other ranks continue by themselves"
        )
    return TransportError(f"MPI failed while {what}: {text}")


def _who_died(comm) -> str:
    """Return the ranks of this communicator that are known to have died, by their numbers when the MPI started."""
    ranks: list[int] = []
    with suppress(MPI.Exception):
        failed = comm.Get_failed()
        numbers = failed.Translate_ranks(list(range(failed.Get_size())), MPI.COMM_WORLD.Get_group())
        ranks = [number for number in numbers if number != MPI.UNDEFINED]  # the number of a rank that replaced one
    return f"{peers(ranks)} {'has' if len(ranks) == 1 else 'have'}" if ranks else "a rank has"


def has_lost(comm) -> bool:
    """Whether a rank of this communicator is known to have died, or another rank has reported a death."""
    try:
        comm.Iprobe()  # receives the launcher's news
        return comm.Is_revoked() or comm.Get_failed().Get_size() > 0
    except MPI.Exception as error:
        return error.Get_error_class() in LOST


def _hears_of_death(comm) -> bool:
    """Whether an error comes from a death under another name: the death becomes known shortly after."""
    until = time.monotonic() + HEARD_S
    while not has_lost(comm):
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)
    return True


@contextmanager
def naming_peers(what: str, comm):
    """Turn MPI errors of the block into :func:`transport_error`."""
    try:
        yield
    except MPI.Exception as error:
        raise transport_error(what, error, comm) from error


class PersistentMessages:
    """The prepared messages of a world: ``message_bytes`` is the length of the longest, ``names`` are the ranks of the
    peers for messages about them.
    """

    def __init__(self, comm: MPI.Intracomm, patience: Patience, message_bytes: int, names: Sequence[int]):
        self._comm, self._patience, self.limit, self._names = comm, patience, message_bytes, names
        self.handles: set[PersistentHandle] = set()

    def prepare(self, prepare: Callable[..., MPI.Prequest], moves: Moves, verb: str, tag: int) -> "PersistentHandle":
        """Return the handle of these moves. ``prepare`` makes a request; ``verb`` names the peer's end in errors."""
        requests = []
        for peer, span in moves:
            data = as_bytes(span)
            with naming_peers(f"preparing a message for rank {self._name(peer)} to {verb} (tag {tag})", self._comm):
                requests += [
                    prepare([_as_mpi_buffer(data[a:b]), MPI.BYTE], peer, tag)
                    for a, b in message_bounds(data.size, self.limit)
                ]
        whom = peers(self._name(peer) for peer, _ in moves)
        handle = PersistentHandle(requests, moves, whom, verb, tag, self._patience, self.handles.discard, self._comm)
        self.handles.add(handle)
        return handle

    def _name(self, peer: int) -> int:
        return self._names[peer] if 0 <= peer < len(self._names) else peer  # the MPI refuses it

    def free(self) -> None:
        for handle in list(self.handles):
            handle.free()


def _as_mpi_buffer(data: Any) -> Any:
    return MPI.buffer.fromaddress(data.address, data.size) if isinstance(data, Raw) else data


class PersistentHandle(TestedHandle):
    """Prepared sends or receives: started together by ``post``, and tested together.

    Most are one message, and are tested often, so they make no unnecessary call. ``moves`` are kept: a request holds
    only the address of its memory.
    """

    def __init__(
        self,
        requests: list,
        moves: Moves,
        whom: str,
        verb: str,
        tag: int,
        patience: Patience,
        freed: Callable[["PersistentHandle"], None],
        comm,
    ):
        self._requests, self._moves, self.patience = requests, moves, patience
        self._awaits = f"{whom} to {verb} (tag {tag})"
        self._receives = verb == "send"
        self._freed, self._comm = freed, comm
        one = requests[0] if len(requests) == 1 else None
        self.post = one.Start if one else partial(MPI.Prequest.Startall, requests)
        self._test = one.Test if one else partial(MPI.Request.Testall, requests)
        self._active = False

    def start(self) -> None:
        try:
            self.post()
        except MPI.Exception as error:
            raise transport_error(self._waiting(), error, self._comm) from error
        self._active = True

    def test(self) -> bool:
        if self._active:
            try:
                self._active = not self._test()
            except MPI.Exception as error:
                raise transport_error(self._waiting(), error, self._comm) from error
        return not self._active

    def free(self) -> None:
        for request in self._requests:
            if self._active and self._receives:  # or the MPI writes into memory that is given back
                with suppress(MPI.Exception):  # of a rank that has died
                    request.Cancel()
                    request.Wait()
            request.Free()
        self._requests = []
        self._active = False
        self._freed(self)

    def awaited(self) -> str:
        return self._awaits

    def _waiting(self) -> str:
        return f"waiting for {self.awaited()}"
