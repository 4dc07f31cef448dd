"""Messages of a service between the threads of a loopback world."""

from collections import deque

from ringtrain.transport.service_messages import ServiceMessages


class ThreadServiceMessages(ServiceMessages):
    """This rank's end of ``boxes``, a queue of (sender, tag, message) for each rank, the same list on every rank."""

    def __init__(self, boxes: list[deque], rank: int, lock):
        self._boxes, self._rank, self._lock = boxes, rank, lock

    def send(self, peer: int, tag: int, data: bytes) -> None:
        with self._lock:
            self._boxes[peer].append((self._rank, tag, bytes(data)))

    def receive(self, tag: int, peer: int | None = None) -> tuple[int, bytes] | None:
        with self._lock:
            for message in self._boxes[self._rank]:
                sender, found, data = message
                if found == tag and peer in (None, sender):
                    self._boxes[self._rank].remove(message)
                    return sender, data
        return None

    def close(self) -> None:
        pass
