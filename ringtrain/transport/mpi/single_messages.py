"""Single messages of host memory over a communicator of their own: any tag, and from any rank if asked."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ringtrain.errors import TransportError
from ringtrain.transport import texts
from ringtrain.transport.base import MessageHandle, TagSpace
from ringtrain.transport.buffers import as_bytes, message_bounds
from ringtrain.transport.mpi.requests import IN_FLIGHT, naming_peers
from ringtrain.transport.waiting import Patience, peers


class SingleMessages(TagSpace):
    """The messages of ``comm``, which is this object's own. ``limit``: the most bytes of one message of the MPI;
    ``names``: the ranks of the peers for messages about them.
    """

    def __init__(self, comm: MPI.Intracomm, limit: int, patience: Patience, names: Sequence[int]):
        self._comm, self._limit, self._patience, self._names = comm, limit, patience, names

    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        return SingleMessage(self._comm, self._parts(span), True, peer, tag, self._patience, self._names)

    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        return SingleMessage(self._comm, self._parts(span), False, peer, tag, self._patience, self._names)

    def _parts(self, span: np.ndarray) -> list[np.ndarray]:
        """Return the parts of a message: one at least, since an empty message must arrive, too."""
        data = as_bytes(span)
        return [data[a:b] for a, b in message_bounds(data.size, self._limit)] or [data]

    def free(self) -> None:
        self._comm.Free()


class SingleMessage(MessageHandle):
    """One message, in flight from the start. Its first part tells who sends, if any rank may; the other parts are then
    received from that rank.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        parts: list[np.ndarray],
        sending: bool,
        peer: int | None,
        tag: int,
        patience: Patience,
        names: Sequence[int],
    ):
        self._comm, self._sending, self._peer, self._tag, self.patience = comm, sending, peer, tag, patience
        self._waiting, self._parts, self._names = list(parts), parts, names
        self._posted: list[tuple[MPI.Request, int]] = []  # with the bytes that are expected
        self.start()
        IN_FLIGHT.add(self)

    def start(self) -> None:
        """Post all parts whose peer is known."""
        with naming_peers(texts.IN_MESSAGE(awaited=self.awaited()), self._comm):
            while self._waiting and not (self._posted and self._peer is None):
                self._posted.append(self._post(self._waiting.pop(0)))

    def _post(self, part: np.ndarray) -> tuple[MPI.Request, int]:
        if self._sending:
            assert self._peer is not None  # a message goes to a rank
            return self._comm.Isend([part, MPI.BYTE], self._peer, self._tag), part.size
        source = MPI.ANY_SOURCE if self._peer is None else self._peer
        return self._comm.Irecv([part, MPI.BYTE], source, self._tag), part.size

    def test(self) -> bool:
        while self._posted:
            request, expected = self._posted[0]
            status = MPI.Status()
            with naming_peers(texts.IN_MESSAGE(awaited=self.awaited()), self._comm):
                if not request.Test(status):
                    return False
            self._posted.pop(0)
            if not self._sending:
                self._arrived(status, expected)
        IN_FLIGHT.discard(self)
        return True

    def _arrived(self, status: MPI.Status, expected: int) -> None:
        self.source = self._peer = status.Get_source()
        sent = status.Get_count(MPI.BYTE)
        if sent != expected:
            ends = {"source": self._names[self.source], "target": self._names[self._comm.rank], "tag": self._tag}
            raise TransportError(texts.SIZES_DIFFER(sent=sent, expected=expected, **ends))
        self.start()

    def awaited(self) -> str:
        verb = "receive" if self._sending else "send"
        peer = texts.ANY_RANK if self._peer is None else peers([self._names[self._peer]])
        return texts.AWAITED_MESSAGE(peer=peer, verb=verb, tag=self._tag)
