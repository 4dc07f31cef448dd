"""One buffer's all-reduce, prepared once and run many times: the interface of schedules, two-shot programs and the
MPI's own all-reduce.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringtrain.arrays import Array
from ringtrain.transport.base import Handle

NATIVE = "mpi"
Combine = Callable[[Array, Array, Array], None]  # combine(a, b, y): y = a op b


class Reduction(Handle):
    """An all-reduce of one buffer. Call :meth:`start` when the buffer is final on this rank; it holds the result when
    :meth:`test` returns True or :meth:`wait` returns. Start several in the same order on all ranks, and either wait for
    them in that order or test them all: a wait progresses only its own.

    algorithm:  name of the algorithm that runs; ``auto:NAME`` if auto chose it
    why:        reason of that choice; "" without one
    transport:  the carrier: "messages", "mapped", "streamed", "routed", or "mpi"
    blocks:     whether a start is a blocking collective call of the MPI, which all ranks make in one order with all
                others
    bytes_sent: bytes that this rank sends to others in a run; None if unknown
    """

    algorithm: str
    why: str = ""
    transport: str
    bytes_sent: int | None
    blocks: bool = False

    def announce(self) -> None:
        """Reserve this reduction's place in the collective order now; the start may come later. Not needed if
        ``blocks``."""

    def run(self, deadline_s: float) -> None:
        self.start()
        self.wait(deadline_s)

    @property
    def moved(self) -> int:
        """Progress counter for a watchdog: grows during a run from 0, and means nothing when the run is done."""
        return 0


class EmptyReduction(Reduction):
    """A reduction of no elements."""

    algorithm = transport = "nothing"
    bytes_sent = 0

    def start(self) -> None:
        """Do nothing."""

    def test(self) -> bool:
        return True

    def wait(self, deadline_s: float) -> None:
        """Return at once."""


class DeviceMark(Protocol):
    """A point in the order of a device's operations."""

    def done(self) -> bool:
        """Whether all operations before it are done."""

    def wait(self) -> None:
        """Block until all operations before it are done."""


class ReductionDevice(Protocol):
    """The device that computes a reduction: part of :class:`ringtrain.ops.base.Ops`."""

    helpers: Any

    def copy(self, x: Array, y: Array) -> None:
        """y = x"""

    def add_all(self, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        """Set every target to the sum of the sources, in their order."""

    def mark(self) -> DeviceMark:
        """Return a point after all operations issued so far."""


class Host:
    """The host as a device: every operation is done when it returns, so it is its own mark."""

    helpers: Any = None

    def copy(self, x, y) -> None:
        np.copyto(y, x)

    def add_all(self, sources, targets) -> None:
        total = sum(sources[1:], sources[0])
        for target in targets:
            np.copyto(target, total)

    def mark(self) -> "Host":
        return self

    def after(self, mark) -> None:
        """Return at once."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


HOST = Host()


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The format of float32 elements in messages. Arrays are flat and of equal size; packed ones have the wire's own
    type."""

    name: str  # name of the number type
    dtype: np.dtype  # NumPy's type of a packed array
    # pack(x, packed): packed = x, rounded; packing an unpacked array again changes nothing
    pack: Callable[[Array, Array], None]
    unpack: Callable[[Array, Array], None]  # unpack(packed, x): x = packed
    add: Callable[[Array, Array], None]  # add(packed, x): x += packed, in float32
