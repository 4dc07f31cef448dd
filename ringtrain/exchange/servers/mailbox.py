"""What several peers send to one, each announced: looked at peer by peer, since nothing comes from "any source".

Only announcements, a number each, are waited for without end. What is announced is received when it is known to come,
and after a goodbye nothing is: between two meetings nothing is left under way.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np

from ringtrain.transport.base import Handle, Transport

PUSH, GOODBYE = 1, 2  # what an announcement says: an update comes; none comes until the next meeting is over
TAGS = 2  # of a mailbox


class MailboxState(Enum):
    LISTENING = "nothing was announced"
    COMING = "an update was announced"
    HERE = "an update has arrived"
    GONE = "the peer has said goodbye"


class Mailbox:
    """The end that receives. count, dtype: of an update. Tags ``tag`` and ``tag + 1`` are its own."""

    def __init__(self, transport: Transport, peers: Sequence[int], count: int, dtype, tag: int):
        self._boxes = {peer: _Box(transport, peer, count, dtype, tag) for peer in peers}

    def open(self) -> None:
        """Listen to all, who have said goodbye or were never heard."""
        for peer in self._boxes:
            self.listen(peer)

    def listen(self, peer: int) -> None:
        """What the peer sent last has been read: the next may come."""
        self._boxes[peer].listen()

    def arrivals(self) -> Iterator[tuple[int, object]]:
        """(peer, update) of those that have arrived since the last look."""
        for peer, box in self._boxes.items():
            if box.look():
                yield peer, box.update

    @property
    def present(self) -> list[int]:
        """The peers that have not said goodbye."""
        return [peer for peer, box in self._boxes.items() if box.state != MailboxState.GONE]


class _Box:
    def __init__(self, transport: Transport, peer: int, count: int, dtype, tag: int):
        self._word = np.zeros(1, np.int64)
        self.update = transport.scratch(count, dtype)
        self._announced = transport.recvs([(peer, self._word)], tag)
        self._coming = transport.recvs([(peer, self.update)], tag + 1)
        self.state = MailboxState.GONE

    def listen(self) -> None:
        self._announced.start()
        self.state = MailboxState.LISTENING

    def look(self) -> bool:
        """Whether an update has arrived just now."""
        if self.state == MailboxState.LISTENING and self._announced.test():
            self._hear()
        if self.state == MailboxState.COMING and self._coming.test():
            self.state = MailboxState.HERE
            return True
        return False

    def _hear(self) -> None:
        if self._word[0] == GOODBYE:
            self.state = MailboxState.GONE
        else:
            self._coming.start()
            self.state = MailboxState.COMING


class Sender:
    """The other end: sends ``update`` to the mailbox of ``peer``, again and again."""

    def __init__(self, transport: Transport, peer: int, update, tag: int):
        self._word = np.zeros(1, np.int64)
        self._announcement: Handle = transport.sends([(peer, self._word)], tag)
        self._update: Handle = transport.sends([(peer, update)], tag + 1)

    def push(self) -> None:
        """:meth:`sent` before."""
        self._announce(PUSH)
        self._update.start()

    def goodbye(self) -> None:
        """:meth:`sent` before."""
        self._announce(GOODBYE)

    def _announce(self, word: int) -> None:
        self._word[0] = word
        self._announcement.start()

    def sent(self) -> bool:
        """Whether all has left, so that memory may change and the next may go."""
        return self._announcement.test() and self._update.test()
