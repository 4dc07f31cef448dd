"""Arrays that several peers send to one rank, each after an announcement. No receive is from "any source".

Only announcements, one number each, have a receive posted all the time. The receive of an array is posted after its
announcement, and none after a goodbye: no message is left under way at a meeting.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np

from ringtrain.transport.base import Handle, Transport

PUSH, GOODBYE = 1, 2  # announcements: an array follows; none follows until the next meeting is over
TAGS = 2  # of a mailbox


class MailboxState(Enum):
    LISTENING = "nothing is announced"
    COMING = "an array is announced"
    HERE = "an array has arrived"
    GONE = "the peer has said goodbye"


class Mailbox:
    """Receives from each of ``peers`` arrays of ``count`` elements. Tags ``tag`` and ``tag + 1`` are its own."""

    def __init__(self, transport: Transport, peers: Sequence[int], count: int, dtype, tag: int):
        self._boxes = {peer: _Box(transport, peer, count, dtype, tag) for peer in peers}

    def open(self) -> None:
        """Listen to all peers, after their goodbyes or at the start."""
        for peer in self._boxes:
            self.listen(peer)

    def listen(self, peer: int) -> None:
        """Receive the peer's next message; the last one has been read."""
        self._boxes[peer].listen()

    def arrivals(self) -> Iterator[tuple[int, object]]:
        """Yield (peer, array) of each array that has arrived since the last call."""
        for peer, box in self._boxes.items():
            if box.has_arrived():
                yield peer, box.array

    @property
    def present(self) -> list[int]:
        """The peers that have not said goodbye."""
        return [peer for peer, box in self._boxes.items() if box.state != MailboxState.GONE]


class _Box:
    def __init__(self, transport: Transport, peer: int, count: int, dtype, tag: int):
        self._word = np.zeros(1, np.int64)
        self.array = transport.scratch(count, dtype)
        self._announced = transport.recvs([(peer, self._word)], tag)
        self._coming = transport.recvs([(peer, self.array)], tag + 1)
        self.state = MailboxState.GONE

    def listen(self) -> None:
        self._announced.start()
        self.state = MailboxState.LISTENING

    def has_arrived(self) -> bool:
        """Whether an array has arrived since the last call."""
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
    """Sends ``array`` to the mailbox of ``peer`` many times. :meth:`push` and :meth:`goodbye` want :meth:`sent` to be
    true."""

    def __init__(self, transport: Transport, peer: int, array, tag: int):
        self._word = np.zeros(1, np.int64)
        self._announcement: Handle = transport.sends([(peer, self._word)], tag)
        self._array: Handle = transport.sends([(peer, array)], tag + 1)

    def push(self) -> None:
        self._announce(PUSH)
        self._array.start()

    def goodbye(self) -> None:
        self._announce(GOODBYE)

    def _announce(self, word: int) -> None:
        self._word[0] = word
        self._announcement.start()

    def sent(self) -> bool:
        """Whether all has left, so that the array may change."""
        return self._announcement.test() and self._array.test()
