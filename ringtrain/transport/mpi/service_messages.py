"""Messages of a service over MPI, on a communicator of their own: a thread receives while others are in the MPI."""

import threading

from mpi4py import MPI

from ringtrain.errors import TransportError
from ringtrain.transport.mpi.requests import naming_peers
from ringtrain.transport.services import ServiceMessages


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
