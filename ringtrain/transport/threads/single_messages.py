"""Single messages between the threads of a loopback world. A send ends when its receive has been posted."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from ringtrain.errors import TransportError
from ringtrain.transport import texts
from ringtrain.transport.base import MessageHandle, TagSpace
from ringtrain.transport.buffers import as_bytes
from ringtrain.transport.waiting import Patience, peers


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
        self._mail, self._rank, self._patience, self._check, self._names = mail, rank, patience, check, names

    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        return self._post(span, True, peer, peer, tag)

    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        return self._post(span, False, self._rank, peer, tag)

    def _post(self, span: np.ndarray, sending: bool, receiver: int, peer: int | None, tag: int) -> "ThreadMessage":
        self._check()
        made = ThreadMessage(as_bytes(span), sending, self._rank, peer, tag, self._patience, self._check, self._names)
        self._mail.post(receiver, tag, made)
        return made


class ThreadMessage(MessageHandle):
    """One end of a message."""

    def __init__(
        self,
        data: np.ndarray,
        sending: bool,
        rank: int,
        peer: int | None,
        tag: int,
        patience: Patience,
        check: Callable[[], None],
        names: Sequence[int],
    ):
        self.data, self.sending, self.rank, self.peer, self._tag = data, sending, rank, peer, tag
        self.patience, self._check, self._names, self._done = patience, check, names, False
        self._error: TransportError | None = None

    def take(self, out: "ThreadMessage") -> None:
        """Receive the bytes of ``out``."""
        if out.data.size == self.data.size:
            self.data[:] = out.data
        else:
            ends = {"source": self._names[out.rank], "target": self._names[self.rank], "tag": self._tag}
            self._error = TransportError(texts.SIZES_DIFFER(sent=out.data.size, expected=self.data.size, **ends))
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

    def awaited(self) -> str:
        verb = "receive" if self.sending else "send"
        peer = texts.ANY_RANK if self.peer is None else peers([self._names[self.peer]])
        return texts.AWAITED_MESSAGE(peer=peer, verb=verb, tag=self._tag)
