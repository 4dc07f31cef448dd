"""Counters on rank 0 that every rank adds to, without any action of rank 0."""

from abc import ABC, abstractmethod

import numpy as np


class Counters(ABC):
    """``count`` numbers of type float64, zero at first. Integers are exact up to 2**53."""

    @abstractmethod
    def take(self, place: int, amount: float) -> float:
        """Add to the number at ``place`` and return its former value. Each call with the same amount gets a different
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
