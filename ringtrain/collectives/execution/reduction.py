"""One buffer's all-reduce, prepared once and run again and again: what a schedule, a fused plan and the MPI's own
have in common."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.transport.base import Handle

NATIVE = "mpi"


class Reduction(Handle):
    """:meth:`start` when the buffer is final on this rank; the result lies in it when :meth:`test` says True, or
    :meth:`wait` returns. Whoever has several in flight starts them in the same order on all ranks, and waits for them
    in one order too, or else tests them all: a wait drives its own alone.

    algorithm:  what runs, by its name among the algorithms; ``auto:NAME`` where that was chosen
    why:        what the choice rests on; "" where there was none
    transport:  what carries it: "messages", "mapped", "routed", or "mpi"
    blocks:     whether a start is a collective call of the MPI: all ranks make those in one order with all others
    bytes_sent: by this rank to others in a run; None where nobody tells
    """

    algorithm: str
    why: str = ""
    transport: str
    bytes_sent: int | None
    blocks: bool = False

    def announce(self) -> None:
        """This rank will start it, when its device is so far: of what ranks do together, in whatever order it starts,
        it is the next. Not where it ``blocks``."""

    @property
    def moved(self) -> int:
        """Grows as a run gets on, whoever looks: what a watchdog watches. Starts from 0 in each run, and
        means nothing when it is done."""
        return 0


class EmptyReduction(Reduction):
    """Of no elements."""

    algorithm = transport = "nothing"
    bytes_sent = 0

    def start(self) -> None:
        """There is nothing to do."""

    def test(self) -> bool:
        return True

    def wait(self, deadline_s: float) -> None:
        """It is done."""


class Host:
    """Its own mark: everything is done."""

    def copy(self, x, y) -> None:
        np.copyto(y, x)

    def mark(self) -> "Host":
        return self

    def after(self, mark) -> None:
        """It is done."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing is ever pending."""


HOST = Host()


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How float32 elements travel. Arrays are flat and of equal size; packed ones have the wire's own type.

    name:   of the numbers that travel
    dtype:  NumPy's, of what is packed
    pack:   pack(x, packed): packed = x, rounded; to pack what was unpacked changes nothing
    unpack: unpack(packed, x): x = packed
    add:    add(packed, x): x += packed, in float32
    """

    name: str
    dtype: object
    pack: Callable
    unpack: Callable
    add: Callable
