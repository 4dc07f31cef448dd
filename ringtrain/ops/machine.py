"""The machine under the operations: its memory, and the order of its operations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array

Value = TypeVar("Value")


class Mark(ABC):
    """A point in the order of operations."""

    @abstractmethod
    def done(self) -> bool:
        """Whether all operations before it are done."""

    @abstractmethod
    def wait(self) -> None:
        """Block until all operations before it are done."""

    @abstractmethod
    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two marks that are ``timed`` and done, by the clock of the device."""


class MachineOps(ABC):
    """Part of :class:`ringtrain.ops.base.Ops`, whose rules hold here."""

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def describe(self) -> str:
        """Return the device in a few words for people."""

    @abstractmethod
    def numerics(self) -> str:
        """Return the kernels and their processor: the conditions of the bits besides sizes and order."""

    def compile_stats(self) -> tuple[int, int]:
        """Return (kernels compiled anew, kernels loaded from the disk cache) in this process: of a device."""
        return 0, 0

    def notes(self) -> list[str]:
        """Return notes for the user about the computation so far."""
        return []

    @abstractmethod
    def threads(self, count: int) -> None:
        """Let operations use ``count`` threads."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
        """Return a new array, of ``self.dtype`` by default."""

    @abstractmethod
    def address(self, x: Array) -> int:
        """Return the address of the first element."""

    @abstractmethod
    def pinned(self, shape: int | Sequence[int], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised NumPy array in memory that a device copies by itself."""

    @abstractmethod
    def upload(self, host: np.ndarray, out: Array) -> None:
        """Copy a NumPy array into ``out``, of the same shape; converts to its dtype. The host's array has been read on
        return, except one of :meth:`pinned`, or a slice of it, which must not change until a mark after this is done.
        """

    @abstractmethod
    def to_host(self, x: Array) -> np.ndarray:
        """Return a NumPy copy of ``x``; waits for the operations before."""

    @abstractmethod
    def download(self, x: Array, host: np.ndarray) -> None:
        """Copy ``x`` into a NumPy array of the same shape; waits for the operations before."""

    @abstractmethod
    def fetch(self, x: Array, host: np.ndarray) -> None:
        """Copy ``x`` into an array of :meth:`pinned`, of the same dtype, without waiting: it is complete when a mark
        after this is done.
        """

    @abstractmethod
    def fill(self, x: Array, value: float) -> None:
        """x = value"""

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
        x = self.empty(shape, dtype)
        self.fill(x, 0)
        return x

    def from_host(self, host: np.ndarray) -> Array:
        x = self.empty(host.shape, host.dtype)
        self.upload(host, x)
        return x

    @abstractmethod
    def put(self, *values: tuple[Array, int | float]) -> None:
        """Set arrays of one element of 8 bytes (int64, uint64, float64) to numbers, up to four, in the order of
        operations; nothing waits."""

    @abstractmethod
    def typed(self, x: Array, dtype: DTypeLike) -> Array:
        """Return the same bytes as a flat array of another type."""

    @abstractmethod
    def memory(self) -> tuple[int, int] | None:
        """Return (free, total) bytes of the device; None for a host, whose memory is shared by all processes. If an
        array does not fit, :meth:`empty` raises DeviceFullError.
        """

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all operations issued so far are done."""

    @abstractmethod
    def segment(self, key: Hashable, run: Callable[[], Value]) -> Value:
        """Return the value of ``run()``, or its value at an earlier call with this key. Its operations must be the
        same, on the same arrays, for the same key: a device may record them once and replay them without ``run``, which
        must have no other effects. Nothing in it is uploaded, read or allocated, except at the first call for a key.
        """

    @abstractmethod
    def mark(self, timed: bool = False) -> Mark:
        """Return a point after all operations issued so far. ``timed``: for :meth:`Mark.seconds_since`."""

    @abstractmethod
    def after(self, mark: Mark) -> None:
        """Let operations issued from now on wait for the mark, which may be of :meth:`beside`."""

    @abstractmethod
    def beside(self) -> Self:
        """Return operations of the same device, on the same arrays, in an order of their own: only marks order them
        relative to these. On a host: these.
        """
