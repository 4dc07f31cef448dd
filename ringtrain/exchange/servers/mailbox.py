"""Arrays that a peer sends to a server, each after an announcement. No receive is from "any source".

Only announcements, one number each, have a receive posted all the time. The receive of an array is posted after its
announcement, and none after a goodbye: no message is left under way at a meeting.
"""

from ringtrain.exchange.announcements import Announcements
from ringtrain.transport.base import Transport

PUSH, GOODBYE = 1, 2  # announcements: an array follows; none follows until the next meeting is over
TAGS = 2  # of a mailbox: ``tag`` for announcements, ``tag + 1`` for arrays


class Mailbox:
    """Receives arrays of ``count`` elements from ``peer``, one after another, in ``array``. ``gone``: whether the peer
    has said goodbye, or is not listened to yet."""

    def __init__(self, transport: Transport, peer: int, count: int, dtype, tag: int):
        self.array = transport.scratch(count, dtype)
        self._announced = Announcements(transport, peer, tag)
        self._coming = transport.recvs([(peer, self.array)], tag + 1)
        self._is_coming, self.gone = False, True

    def listen(self) -> None:
        """Receive the peer's next array; the last one has been read."""
        self._announced.listen()
        self.gone = False

    def has_arrived(self) -> bool:
        """Whether an array has arrived since the last call."""
        word = self._announced.arrived()
        if word == [GOODBYE]:
            self.gone = True
        elif word:
            self._coming.start()
            self._is_coming = True
        if not self._is_coming or not self._coming.test():
            return False
        self._is_coming = False
        return True
