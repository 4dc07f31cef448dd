"""The machine under the operations: its memory, and the order in which they are done."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable


class Mark(ABC):
    """A point in the order of operations."""

    @abstractmethod
    def done(self) -> bool:
        """Whether all operations before it are done."""

    @abstractmethod
    def wait(self) -> None:
        """Block until they are."""

    @abstractmethod
    def seconds_since(self, earlier: "Mark") -> float:
        """From when those before the earlier mark were done, by the clock of what did them: of two marks that are
        ``timed`` and done."""


class MachineOps(ABC):
    """Part of :class:`ringtrain.ops.base.Ops`, whose rules hold here."""

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def describe(self) -> str:
        """What computes, in a few words for people."""

    @abstractmethod
    def numerics(self) -> str:
        """Whose kernels compute, and for which processor: what bits hang on besides sizes and order."""

    @abstractmethod
    def compile_stats(self) -> tuple[int, int]:
        """(kernels compiled anew, kernels loaded from the disk cache) in this process."""

    def notes(self) -> list[str]:
        """What the user should know of how it computes, found out so far."""
        return []

    @abstractmethod
    def threads(self, count: int) -> None:
        """Let matrix products use ``count`` threads, in the whole process."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def empty(self, shape, dtype=None):
        """A new array, of ``self.dtype`` unless told otherwise."""

    @abstractmethod
    def pinned(self, shape, dtype):
        """A NumPy array, of any content, in memory that a device copies from and to by itself."""

    @abstractmethod
    def upload(self, host, out):
        """Copy a NumPy array into ``out``, of the same shape; converts to its dtype. The host's array has been read on
        return, unless it is of :meth:`pinned`, or a slice of such: that is left alone until a mark after this is done.
        """

    @abstractmethod
    def to_host(self, x):
        """A NumPy copy of ``x``; waits for what is still to be computed."""

    @abstractmethod
    def download(self, x, host):
        """Copy ``x`` into a NumPy array of the same shape; waits for what is still to be computed."""

    @abstractmethod
    def fetch(self, x, host):
        """The same into an array of :meth:`pinned`, of the same dtype, without waiting: it is there when a mark after
        this is done."""

    def zeros(self, shape, dtype=None):
        x = self.empty(shape, dtype)
        self.fill(x, 0)
        return x

    def from_host(self, host):
        x = self.empty(host.shape, host.dtype)
        self.upload(host, x)
        return x

    @abstractmethod
    def memory(self) -> tuple[int, int] | None:
        """(free, total) bytes of the device; None of a host, whose memory is everybody's. Where an array does not fit
        :meth:`empty` raises DeviceFullError."""

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def synchronize(self):
        """Wait until all operations issued so far are done."""

    @abstractmethod
    def segment(self, key: Hashable, run: Callable):
        """What ``run()`` returns, or returned for this key before. Its operations are the same, on the same arrays,
        whenever the key is the same: a device may record them once and do them again without it, so ``run`` must do
        nothing else that counts. In it nothing is uploaded, read or allocated, but in the first for a key."""

    @abstractmethod
    def mark(self, timed: bool = False) -> Mark:
        """A point after all operations issued so far. ``timed``: for :meth:`Mark.seconds_since`."""

    @abstractmethod
    def after(self, mark: Mark) -> None:
        """Operations issued from now on wait for the mark, which may be of :meth:`beside`."""

    @abstractmethod
    def beside(self) -> "MachineOps":
        """Operations of the same device, on the same arrays, in an order of their own: nothing but marks orders them
        and these. On a host: these."""
