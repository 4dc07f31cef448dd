"""The interface of messages of any length that arrive unannounced, for services beside the exchange."""

from abc import ABC, abstractmethod


class ServiceMessages(ABC):
    """One rank's messages of a service. Threads may share them; they are none of the transport's."""

    @abstractmethod
    def send(self, peer: int, tag: int, data: bytes) -> None:
        """Send to a rank, this one too. Returns at once. Messages of one sender, receiver and tag arrive in order."""

    @abstractmethod
    def receive(self, tag: int, peer: int | None = None) -> tuple[int, bytes] | None:
        """Return (sender, message), the next that has come with this tag; None if there is none. ``peer``: its sender;
        any without one.
        """

    @abstractmethod
    def close(self) -> None:
        """Release them; collective. Messages that nobody received are lost."""
