"""Single messages between the threads of a loopback world. A send ends when its receive has been posted."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from ringtrain.errors import TransportError
from ringtrain.transport.base import MessageHandle, TagSpace
from ringtrain.transport.buffers import as_bytes
from ringtrain.transport.waiting import Patience


class ThreadMail:
    """The messages of one space, by receiver and tag: those that are sent, and those that are awaited."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.posted: dict[tuple[int, int], tuple[list, list]] = defaultdict(lambda: ([], []))

    def post(self, receiver: int, tag: int, message: "ThreadMessage") -> None:
        """Add one end of a message, and copy those that have both ends: the oldest first."""
        with self.lock:
            sent, awaited = self.posted[receiver, tag]
            (sent if message.sending else awaited).append(message)
            for into in list(awaited):
                out = next((out for out in sent if into.peer in (None, out.rank)), None)
                if out is not None:
                    sent.remove(out)
                    awaited.remove(into)
                    into.take(out)


class ThreadSpace(TagSpace):
    """One rank's end of a :class:`ThreadMail`."""

    def __init__(
        self, mail: ThreadMail, rank: int, patience: Patience, check: Callable[[], None], names: Sequence[int]
    ):
        self._mail, self.rank, self.patience, self.check, self.names = mail, rank, patience, check, names

    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        return self._post(span, True, peer, peer, tag)

    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        return self._post(span, False, self.rank, peer, tag)

    def _post(self, span: np.ndarray, sending: bool, receiver: int, peer: int | None, tag: int) -> "ThreadMessage":
        self.check()
        message = ThreadMessage(self, as_bytes(span), sending, peer, tag)
        self._mail.post(receiver, tag, message)
        return message


class ThreadMessage(MessageHandle):
    """One end of a message."""

    def __init__(self, space: ThreadSpace, data: np.ndarray, sending: bool, peer: int | None, tag: int):
        super().__init__(sending, peer, tag, space.names, space.patience)
        self.rank, self.data, self._check, self._done = space.rank, data, space.check, False
        self._error: TransportError | None = None

    def take(self, out: "ThreadMessage") -> None:
        """Receive the bytes of ``out``."""
        if out.data.size == self.data.size:
            self.data[:] = out.data
        else:
            self._error = self.of_another_length(out.data.size, self.data.size, out.rank, self.rank)
        self.source = out.rank
        out._done = self._done = True

    def start(self) -> None:
        """Do nothing: the message is in flight from the start."""

    def test(self) -> bool:
        if not self._done:
            self._check()
        if self._error is not None:
            raise self._error
        return self._done
