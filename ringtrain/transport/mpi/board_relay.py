"""The flight recorder's rows between nodes: one rank of each node sends its node's rows to the others.

A thread does this on a communicator of its own, so it works while the main threads compute or hang. Messages go from
each node to each, and no node waits for another: if a node hangs, only its own rows stand still. RMA would not keep
that promise: over some networks of Open MPI 5 the flush of a put waits until the target makes an MPI call.
"""

import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from ringtrain.transport.mpi.arrivals import check_arrivals

EVERY_S = 0.2  # between two messages to one node; it receives four times as often
END_S, LAST_S = 5.0, 2e-3


class RemoteRows:
    """The rows from and to one other node. A message says in its first byte whether it is the last; the others are what
    has changed since the message before, compressed: most of a row stays as it is."""

    def __init__(self, comm, number: int, theirs: Sequence[int], ours: Sequence[int], nbytes: int):
        self.ranks, self._comm, self._number = list(theirs), comm, number
        self._received, self._sent = (np.zeros(len(ranks) * nbytes, np.uint8) for ranks in (theirs, ours))
        self._into, self._out = np.zeros(_most_bytes(len(theirs) * nbytes), np.uint8), b""
        self._recv, self._send = comm.Recv_init([self._into, MPI.BYTE], number), MPI.REQUEST_NULL
        self._recv.Start()
        self.sending = self.last_sent = self.last_received = False

    def receive(self, rows: np.ndarray) -> None:
        """Copy the rows of a message that has come, and post the next receive."""
        status = MPI.Status()
        if not self.last_received and self._recv.Test(status):
            changes = zlib.decompress(self._into[1 : status.Get_count(MPI.BYTE)].tobytes())
            self._received ^= np.frombuffer(changes, np.uint8)
            rows[self.ranks] = self._received.reshape(len(self.ranks), -1)
            self.last_received = bool(self._into[0])
            if not self.last_received:
                self._recv.Start()

    def send(self, rows: np.ndarray, last: bool) -> None:
        """Send the rows, unless the message before is under way."""
        self.sending = self.sending and not self._send.Test()
        if not self.sending and not self.last_sent:
            now = rows.reshape(-1)
            self._out = bytes([last]) + zlib.compress((now ^ self._sent).tobytes(), 1)
            self._sent = now
            self._send = self._comm.Isend([self._out, MPI.BYTE], self._number)
            self.sending, self.last_sent = True, last

    @property
    def ended(self) -> bool:
        return self.last_sent and self.last_received and not self.sending

    def free(self) -> None:
        self._recv.Free()


def _most_bytes(nbytes: int) -> int:
    """Return the most bytes of a message: zlib adds less than this to bytes that it cannot compress."""
    return nbytes + nbytes // 100 + 100


class RowRelay:
    """Keeps the rows of other nodes up to date until :meth:`end`.

    comm:   the ranks that relay, one of each node; no other code uses it. The end frees it
    groups: for each rank of ``comm`` the ranks of the world whose rows its node holds
    rows:   [ranks of the world, bytes], shared by this node
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
        looks = 0
        with suppress(MPI.Exception):  # a rank has died: the main thread sees that in its own wait
            while not (self._given_up or all(peer.ended for peer in self._peers)):
                ending = self._ending.is_set()
                for peer in self._peers:
                    peer.receive(self._rows)
                    if ending or looks % 4 == 0:
                        peer.send(self._rows[self._ours], ending)
                looks += 1
                _pause(self._ending)

    def leave(self) -> None:
        """End the thread after a death, without the other nodes. Its messages under way stay allocated."""
        self._given_up = True
        self._ending.set()
        with suppress(MPI.Exception):
            self._comm.Revoke()
        self._thread.join()

    def end(self) -> None:
        """End the thread. Collective over the relays; it waits for END_S at most."""
        self._ending.set()
        self._thread.join(END_S)
        self._given_up = self._thread.is_alive()
        self._thread.join()
        if not self._given_up:  # otherwise messages are under way and need their memory
            for peer in self._peers:
                peer.free()
            self._comm.Free()


def _pause(ending: threading.Event) -> None:
    if ending.is_set():
        time.sleep(LAST_S)
    else:
        ending.wait(EVERY_S / 4)


def relayed(comm, group: Sequence[int], rows: np.ndarray) -> RowRelay | None:
    """Start the relay of ``group``, the ranks of ``comm`` that share ``rows`` with this rank, on the lowest of them.
    Collective over ``comm``; None on the other ranks."""
    leads = comm.rank == group[0]
    lead_of = np.zeros(comm.size, np.int64)
    comm.Allgather(np.array([group[0]], np.int64), lead_of)
    check_arrivals(comm)
    leads_comm = comm.Split(0 if leads else MPI.UNDEFINED, comm.rank)
    if not leads:
        return None
    groups = [np.flatnonzero(lead_of == lead).tolist() for lead in np.unique(lead_of)]
    return RowRelay(leads_comm, groups, rows)
