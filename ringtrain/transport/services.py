"""Parts of a transport beside its messages: rows that all ranks read, counters on rank 0, and messages of services."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rows:
    """A row of shared memory for each rank, for the flight recorder: a rank writes its own and reads all."""

    rows: np.ndarray  # [size, bytes of a row], uint8; each rank writes only its own
    near: Sequence[int]  # the ranks whose stores are seen at once; rows of other nodes arrive within about a second
    gap: str = ""  # the ranks whose rows cannot be seen here, and why; empty if all can


class Counters(ABC):
    """Numbers on rank 0 that every rank adds to, without any action of rank 0: float64, zero at first. Whole numbers
    are exact up to 2**53.
    """

    @abstractmethod
    def take(self, index: int, amount: float) -> float:
        """Add to the number at ``index`` and return its former value. Each call with the same amount gets a different
        value.
        """

    @abstractmethod
    def add(self, start: int, values: np.ndarray) -> None:
        """Add ``values``, float64, to the numbers from ``start`` on, each addition atomically."""

    @abstractmethod
    def read(self) -> np.ndarray:
        """Return the numbers as they are now; after a barrier, with all earlier additions."""

    @abstractmethod
    def clear(self) -> None:
        """Set all numbers to zero; collective."""

    def free(self) -> None:  # noqa: B027
        """Free the memory; collective."""


class ServiceMessages(ABC):
    """One rank's messages of a service, of any length, which arrive unannounced. Threads may share them; no other
    message of the transport meets them.
    """

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
        """Free the messages' memory; collective. A message that no rank received is lost."""
