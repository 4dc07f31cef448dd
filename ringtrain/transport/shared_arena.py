"""Memory that the ranks of a node map alike, and counters in it by which they wait for one another.

An *arena* is one piece of memory for every rank of the node, each as long as the others, all in one shared window. A
span of a rank's own piece has a twin in everybody else's: the same elements, that far from the beginning.

A *lane* is a counter for every rank, alone on its cache line. A rank advances its own, and looks whether the others
have advanced as often. Each lane is used in one order on all ranks, so that equal counts mean equal positions.

Source: MPI 4.1, section 12.2.3, for windows of shared memory; 12.7 for what ``sync`` orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LINE_BYTES = 64  # a cache line: counters on one line would make their ranks take it from one another
LANES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class SharedArena:
    """pieces: uint8 arrays of one length, by place in the node. ``own`` is the place of this rank."""

    pieces: Sequence[np.ndarray]
    own: int

    def peer_views(self, span: np.ndarray) -> list[np.ndarray] | None:
        """The span's elements in every piece, its own among them; None where the span is not in the own piece, or has
        gaps: what lies in them is nobody's to touch."""
        if not span.flags.c_contiguous:
            return None
        start = span.ctypes.data - self.pieces[self.own].ctypes.data
        if not 0 <= start <= self.pieces[self.own].nbytes - span.nbytes:
            return None
        return [piece[start : start + span.nbytes].view(span.dtype) for piece in self.pieces]


def twins(arenas: Sequence[SharedArena], span) -> list | None:
    """The span's elements on every rank of the node, if it lies in one of the arenas."""
    if not isinstance(span, np.ndarray):
        return None
    found = (arena.peer_views(span) for arena in arenas)
    return next((views for views in found if views is not None), None)


class SignalCounter:
    """One counter for every rank of the node. ``sync`` orders this rank's reads and writes of shared memory before it
    and after it."""

    def __init__(self, counters: Sequence[np.ndarray], own: int, sync: Callable[[], None]):
        self._own = memoryview(counters[own])
        self._others = [memoryview(counter) for place, counter in enumerate(counters) if place != own]
        self._places = [place for place in range(len(counters)) if place != own]
        self._sync = sync

    @property
    def count(self) -> int:
        """How often this rank has advanced; the same on all ranks at the same point of what they do on this lane."""
        return self._own[0]

    def advance(self) -> None:
        """What this rank has written is there for whoever sees the new count."""
        self._sync()
        self._own[0] += 1

    def reached(self) -> bool:
        """Whether every other rank has advanced as often as this one."""
        count = self._own[0]
        for other in self._others:
            if other[0] < count:
                return False
        self._sync()
        return True

    def late(self) -> list[int]:
        """The places of those that have not."""
        count = self._own[0]
        return [place for place, other in zip(self._places, self._others, strict=True) if other[0] < count]


class SignalCounters:
    """Lanes by tag, made in blocks. ``window(nbytes)`` is memory that the node shares, or None; collective."""

    def __init__(self, window: Callable[[int], np.ndarray | None], own: int, size: int, sync: Callable[[], None]):
        self._window, self._own, self._size, self._sync = window, own, size, sync
        self._blocks: dict[int, np.ndarray | None] = {}

    def signal_counter(self, tag: int) -> SignalCounter | None:
        """The lane of that tag; None where memory is not shared. Collective over the node when a block is new."""
        if self._size == 1:
            return SignalCounter([np.zeros(1, np.int64)], 0, self._sync)
        number, index = divmod(tag, LANES_AT_ONCE)
        if number not in self._blocks:
            self._blocks[number] = self._window(LANES_AT_ONCE * self._size * LINE_BYTES)
        if self._blocks[number] is None:
            return None
        counts = self._blocks[number].view(np.int64).reshape(LANES_AT_ONCE, self._size, -1)
        return SignalCounter([counts[index, place, :1] for place in range(self._size)], self._own, self._sync)
