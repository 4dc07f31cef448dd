"""Parts of a transport over MPI beside its messages: counters on rank 0, by one-sided operations; and messages of a
service on a communicator of their own, which a thread receives while others are in the MPI."""

import threading

import numpy as np
from mpi4py import MPI

from ringtrain.errors import TransportError
from ringtrain.transport.mpi.requests import naming_peers
from ringtrain.transport.services import Counters, ServiceMessages

ITEM_BYTES = 8
ADDING = "adding to rank 0's numbers"


class RmaCounters(Counters):
    """Counters in the memory of rank 0 of ``comm``. Collective to make."""

    def __init__(self, comm, count: int):
        self._comm, self._count = comm, count
        nbytes = count * ITEM_BYTES if comm.rank == 0 else 0
        with naming_peers(ADDING, self._comm):
            self._window = MPI.Win.Allocate(nbytes, ITEM_BYTES, comm=comm)
            self._window.Lock_all()
        self._old = np.zeros(1)
        self.clear()

    def take(self, index: int, amount: float) -> float:
        with naming_peers(ADDING, self._comm):
            self._window.Fetch_and_op(np.array([amount], np.float64), self._old, 0, index, MPI.SUM)
            self._window.Flush(0)
        return float(self._old[0])

    def add(self, start: int, values: np.ndarray) -> None:
        with naming_peers(ADDING, self._comm):
            self._window.Accumulate([values, MPI.DOUBLE], 0, target=start, op=MPI.SUM)
            self._window.Flush(0)

    def read(self) -> np.ndarray:
        numbers = np.zeros(self._count)
        with naming_peers(ADDING, self._comm):
            self._window.Get([numbers, MPI.DOUBLE], 0)
            self._window.Flush(0)
        return numbers

    def clear(self) -> None:
        self._comm.Barrier()
        if self._comm.rank == 0:
            self._window.Accumulate([np.zeros(self._count), MPI.DOUBLE], 0, op=MPI.REPLACE)
            self._window.Flush(0)
        self._comm.Barrier()

    def free(self) -> None:
        self._window.Unlock_all()
        self._window.Free()


class MpiServiceMessages(ServiceMessages):
    """This rank's messages in a duplicate of ``comm``. Collective to make. Raises TransportError if the MPI does not
    let threads call it.
    """

    def __init__(self, comm: MPI.Intracomm, level: str):
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise TransportError(
                f"the keys and values that ranks share need a thread, and this MPI gives thread level {level}: use an "
                "MPI that is built for threads (MPI_THREAD_MULTIPLE), and start it by ringtrain or mpi4py"
            )
        self._comm = comm.Dup()
        self._lock = threading.Lock()
        self._sending: list[tuple[MPI.Request, bytes]] = []  # a request holds only the address of its message

    def send(self, peer: int, tag: int, data: bytes) -> None:
        with self._lock, naming_peers(f"sending a request or an answer to rank {peer}", self._comm):
            self._sending = [each for each in self._sending if not each[0].Test()]
            self._sending.append((self._comm.Isend([data, MPI.BYTE], peer, tag), data))

    def receive(self, tag: int, peer: int | None = None) -> tuple[int, bytes] | None:
        status = MPI.Status()
        with naming_peers("looking for requests and answers", self._comm):
            message = self._comm.Improbe(MPI.ANY_SOURCE if peer is None else peer, tag, status)
            if message is None:
                return None
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
        return status.Get_source(), bytes(data)

    def close(self) -> None:
        with self._lock:
            for request, _ in self._sending:
                if not request.Test():  # its receiver has given up
                    request.Free()
            self._sending = []
        self._comm.Free()
