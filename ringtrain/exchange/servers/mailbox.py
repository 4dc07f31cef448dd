"""Arrays that several peers send to one rank, each after an announcement. No receive is from "any source".

Only announcements, one number each, have a receive posted all the time. The receive of an array is posted after its
announcement, and none after a goodbye: no message is left under way at a meeting.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np

from ringtrain.arrays import Array
from ringtrain.transport.base import Transport

PUSH, GOODBYE = 1, 2  # announcements: an array follows; none follows until the next meeting is over
TAGS = 2  # of a mailbox: ``tag`` for announcements, ``tag + 1`` for arrays


class MailboxState(Enum):
    LISTENING = "nothing is announced"
    COMING = "an array is announced"
    HERE = "an array has arrived"
    GONE = "the peer has said goodbye"


class Mailbox:
    """Receives arrays of ``count`` elements from each of ``peers``."""

    def __init__(self, transport: Transport, peers: Sequence[int], count: int, dtype, tag: int):
        self._boxes = {peer: _Box(transport, peer, count, dtype, tag) for peer in peers}

    def open(self) -> None:
        """Listen to all peers, at the start or after their goodbyes."""
        for box in self._boxes.values():
            box.listen()

    def listen(self, peer: int) -> None:
        """Receive the peer's next message; the last array has been read."""
        self._boxes[peer].listen()

    def arrivals(self) -> Iterator[tuple[int, Array]]:
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
            goodbye = self._word[0] == GOODBYE
            self.state = MailboxState.GONE if goodbye else MailboxState.COMING
            if not goodbye:
                self._coming.start()
        if self.state == MailboxState.COMING and self._coming.test():
            self.state = MailboxState.HERE
            return True
        return False
