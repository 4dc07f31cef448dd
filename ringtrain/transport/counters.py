"""Numbers on rank 0 that every rank adds to, and takes tickets from, without rank 0's doing anything for it."""

from abc import ABC, abstractmethod

import numpy as np


class Counters(ABC):
    """float64 [count], zero at first. Whole numbers are exact up to 2**53."""

    @abstractmethod
    def take(self, place: int, amount: float) -> float:
        """Add to the number at ``place``; what it was before. Nobody else gets the same answer by the same amount."""

    @abstractmethod
    def add(self, start: int, values: np.ndarray) -> None:
        """Add ``values``, float64, to the numbers from ``start`` on, each of them whole."""

    @abstractmethod
    def read(self) -> np.ndarray:
        """The numbers as they are now; after a barrier, with all that was added before it."""

    @abstractmethod
    def clear(self) -> None:
        """Make all of them zero; collective."""

    def free(self) -> None:  # noqa: B027
        """Give the memory back; collective."""
