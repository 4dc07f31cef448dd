"""Single messages of host memory over a communicator of their own: any tag, and from any rank if asked.

A receive takes a message whose length it has seen: Open MPI, where it copies from the sender's memory, writes all of a
message that is too long, past the end of the array.
"""

from collections.abc import Sequence
from threading import Lock

import numpy as np
from mpi4py import MPI

from ringtrain.transport.base import MessageHandle, TagSpace
from ringtrain.transport.buffers import as_bytes, message_bounds
from ringtrain.transport.mpi.requests import IN_FLIGHT, naming_peers
from ringtrain.transport.waiting import Patience


class SingleMessages(TagSpace):
    """The messages of ``comm``, which is this object's own. ``limit``: the most bytes of one message of the MPI;
    ``names``: the ranks of the peers for messages about them.
    """

    def __init__(self, comm: MPI.Intracomm, limit: int, patience: Patience, names: Sequence[int]):
        self.comm, self.limit, self.patience, self.names = comm, limit, patience, names
        self._receives: list[SingleMessage] = []  # whose messages have not come, in the order of their calls
        self._matching = Lock()

    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        return SingleMessage(self, self._parts(span), True, peer, tag)

    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        message = SingleMessage(self, self._parts(span), False, peer, tag)
        with self._matching:
            self._receives.append(message)
        return message

    def match(self, tag: int) -> None:
        """Let receives of a tag take what has come: of those that want the same message, the first call takes it. The
        test of any of them does so, as the MPI's own progress would.
        """
        if not self._receives:
            return
        with self._matching:
            waiting: list[SingleMessage] = []
            for each in self._receives:
                if each.tag != tag or any(each.competes(other) for other in waiting) or not each.take():
                    waiting.append(each)
            self._receives = waiting

    def _parts(self, span: np.ndarray) -> list[np.ndarray]:
        """Return the parts of a message: the last is shorter than the limit, and may be empty. It tells the end."""
        data = as_bytes(span)
        parts = [data[a:b] for a, b in message_bounds(data.size, self.limit)]
        return parts if data.size % self.limit else [*parts, data[data.size :]]

    def free(self) -> None:
        self.comm.Free()


class SingleMessage(MessageHandle):
    """One message, in flight from the start. Its first part tells who sends, if any rank may; the other parts are then
    received from that rank.
    """

    def __init__(self, space: SingleMessages, parts: list[np.ndarray], sending: bool, peer: int | None, tag: int):
        super().__init__(sending, peer, tag, space.names, space.patience)
        self._space, self._comm, self._waiting = space, space.comm, parts
        self._posted: list[tuple[MPI.Request, np.ndarray, int]] = []  # with the bytes that are expected
        self._doing = f"waiting for {self.awaited()}"
        if sending:
            self.start()
        IN_FLIGHT.add(self)

    def start(self) -> None:
        """Post all parts of a message that is sent."""
        assert self.peer is not None  # a message goes to a rank
        with naming_peers(self._doing, self._comm):
            for part in self._waiting:
                self._posted.append((self._comm.Isend([part, MPI.BYTE], self.peer, self.tag), part, part.size))
        self._waiting = []

    def competes(self, other: "SingleMessage") -> bool:
        """Whether two receives may want the same message."""
        return self.tag == other.tag and (None in (self.peer, other.peer) or self.peer == other.peer)

    def take(self) -> bool:
        """Take the parts that have come. Returns whether all have, or one that differs."""
        status = MPI.Status()
        with naming_peers(self._doing, self._comm):
            while self._waiting:
                source = MPI.ANY_SOURCE if self.peer is None else self.peer
                message = self._comm.Improbe(source, self.tag, status)
                if message is None:
                    return False
                part, sent = self._waiting[0], status.Get_count(MPI.BYTE)
                self.source = self.peer = status.Get_source()
                into = part if sent == part.size else np.empty(sent, np.uint8)
                self._posted.append((message.Irecv([into, MPI.BYTE]), into, part.size))
                self._waiting = (self._waiting[1:] or [part[:0]]) if sent == self._space.limit else []
        return True

    def test(self) -> bool:
        self._space.match(self.tag)
        taken = not self._waiting  # asked first: another thread may take parts meanwhile
        while self._posted:
            request, part, expected = self._posted[0]
            with naming_peers(self._doing, self._comm):
                if not request.Test():
                    return False
            self._posted.pop(0)
            if part.size != expected:
                IN_FLIGHT.discard(self)
                raise self.of_another_length(part.size, expected, self.source or 0, self._comm.rank)
        if not taken:
            return False
        IN_FLIGHT.discard(self)
        return True
