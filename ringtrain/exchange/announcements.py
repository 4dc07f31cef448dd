"""A few numbers that a rank announces, one set after another: what comes next, or that nothing does."""

from collections.abc import Sequence

import numpy as np

from ringtrain.transport.base import Transport


class Announcer:
    """Sends ``count`` numbers at a time to ``peers``: ``nbytes`` in all."""

    def __init__(self, transport: Transport, peers: Sequence[int], tag: int, deadline_s: float, count: int = 1):
        self._numbers, self._deadline_s = np.zeros(count, np.int64), deadline_s
        self.nbytes = self._numbers.nbytes * len(peers)
        self._handle = transport.sends([(peer, self._numbers) for peer in peers], tag)

    def send(self, *numbers: int) -> None:
        """Send these numbers when the last ones have left."""
        self.wait()
        self._numbers[:] = numbers
        self._handle.start()

    def sent(self) -> bool:
        return self._handle.test()

    def wait(self) -> None:
        """Wait until the last numbers have left."""
        self._handle.wait(self._deadline_s)


class Announcements:
    """Receives the numbers of one peer. A receive is posted from :meth:`listen` until they have come."""

    def __init__(self, transport: Transport, peer: int, tag: int, count: int = 1):
        self.peer, self._listening = peer, False
        self._numbers = np.zeros(count, np.int64)
        self._handle = transport.recvs([(peer, self._numbers)], tag)

    def listen(self) -> None:
        if not self._listening:
            self._handle.start()
        self._listening = True

    def arrived(self) -> list[int] | None:
        """Return the numbers that have come since the last call; None if there are none."""
        if not self._listening or not self._handle.test():
            return None
        self._listening = False
        return self._numbers.tolist()
