"""Rows of a board between machines: one rank of each machine hands its machine's rows to the others, in the background.

A thread does it, on a communicator of its own, so that nobody has to be in an MPI call for it. Messages go from each to
each, and no one waits for anyone: where a machine hangs, only its own rows stand still.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from mpi4py import MPI

EVERY_S = 0.2  # between two messages to the same machine; looked at four times as often
END_S, LAST_S = 5.0, 2e-3


class RemoteRows:
    """One other machine: its rows as they arrive, and ours as they leave. The byte in front says: this is the last."""

    def __init__(self, comm, number: int, theirs: Sequence[int], ours: Sequence[int], nbytes: int):
        self.ranks = list(theirs)
        self._into = np.zeros(1 + len(theirs) * nbytes, np.uint8)
        self._out = np.zeros(1 + len(ours) * nbytes, np.uint8)
        self._recv = comm.Recv_init([self._into, MPI.BYTE], number)
        self._send = comm.Send_init([self._out, MPI.BYTE], number)
        self._recv.Start()
        self.sending = self.told = self.heard = False  # told, heard: the last message has been sent, has come

    def receive(self, rows: np.ndarray) -> None:
        """Take what has come, and be ready for more."""
        if not self.heard and self._recv.Test():
            rows[self.ranks] = self._into[1:].reshape(len(self.ranks), -1)
            self.heard = bool(self._into[0])
            if not self.heard:
                self._recv.Start()

    def send(self, rows: np.ndarray, last: bool) -> None:
        """Unless the message before is still on its way."""
        self.sending = self.sending and not self._send.Test()
        if not self.sending and not self.told:
            self._out[0], self._out[1:] = last, rows.reshape(-1)
            self._send.Start()
            self.sending, self.told = True, last

    @property
    def ended(self) -> bool:
        return self.told and self.heard and not self.sending

    def free(self) -> None:
        self._recv.Free()
        self._send.Free()


class RowRelay:
    """Keeps the rows of other machines up to date until :meth:`end`.

    comm:   the ranks that relay, one of each machine; ours alone. It is freed at the end
    groups: for each rank of ``comm`` the ranks of the world whose rows its machine holds
    rows:   [ranks of the world, bytes], this machine's own
    """

    def __init__(self, comm, groups: Sequence[Sequence[int]], rows: np.ndarray):
        self._comm, self._rows, self._ours = comm, rows, list(groups[comm.rank])
        others = [number for number in range(comm.size) if number != comm.rank]
        nbytes = rows.shape[1]
        self._peers = [RemoteRows(comm, number, groups[number], self._ours, nbytes) for number in others]
        self._ending, self._given_up = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="relay of the board", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(MPI.Exception):  # a rank has died: the main thread learns that where it waits
            self._hand_over()

    def _hand_over(self) -> None:
        looks = 0
        while not (self._given_up or all(peer.ended for peer in self._peers)):
            ending = self._ending.is_set()
            for peer in self._peers:
                peer.receive(self._rows)
                if ending or looks % 4 == 0:
                    peer.send(self._rows[self._ours], ending)
            looks += 1
            _pause(self._ending)

    def leave(self) -> None:
        """After a death: end the thread, and wait for nobody. What it has under way is kept."""
        self._given_up = True
        self._ending.set()
        with suppress(MPI.Exception):
            self._comm.Revoke()
        self._thread.join()

    def end(self) -> None:
        """Collective over the relays; one that does not answer is not waited for long."""
        self._ending.set()
        self._thread.join(END_S)
        self._given_up = self._thread.is_alive()
        self._thread.join()
        if not self._given_up:  # else messages are on their way, and what they use stays
            for peer in self._peers:
                peer.free()
            self._comm.Free()


def _pause(ending: threading.Event) -> None:
    if ending.is_set():
        time.sleep(LAST_S)
    else:
        ending.wait(EVERY_S / 4)


def relayed(comm, group: Sequence[int], rows: np.ndarray) -> RowRelay | None:
    """Relay the rows of ``group``, the ranks of ``comm`` that this rank shares ``rows`` with; the lowest of them does.
    Collective over ``comm``; None on ranks that do not relay."""
    leads = comm.rank == group[0]
    lead_of = np.zeros(comm.size, np.int64)
    comm.Allgather(np.array([group[0]], np.int64), lead_of)
    leads_comm = comm.Split(0 if leads else MPI.UNDEFINED, comm.rank)
    if not leads:
        return None
    groups = [np.flatnonzero(lead_of == lead).tolist() for lead in np.unique(lead_of)]
    return RowRelay(leads_comm, groups, rows)
