"""Memory that the ranks of a node map alike, and counters in it by which they wait for one another.

An *arena* is one array for every rank of the node, all of the same length, all in one shared window. A span of a rank's
own array has peer views in the others: the same elements, at the same offset.

A *signal counter* has a number for every rank, alone on its cache line. A rank advances its own number, and checks
whether the others have advanced as often. All ranks use a counter in one order, so that equal counts mean equal
positions.

Source: MPI 4.1, section 12.2.3, for windows of shared memory; 12.7 for the ordering by ``sync``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array, array_address

LINE_BYTES = 64  # a cache line: ranks with counters on one line would invalidate one another's caches
LANES_AT_ONCE = 64
TOKEN_BYTES = 16  # by which a rank finds that it maps its neighbour's array, and nothing else


@dataclass(frozen=True, slots=True)
class SharedArena:
    """The arrays of the node's ranks: uint8, of one length, by local rank. ``own`` is this rank's."""

    arrays: Sequence[np.ndarray]
    local_rank: int

    def peer_views(self, span: np.ndarray) -> list[Array] | None:
        """Return the span's elements in every array, its own included; None if the span is not in this rank's array, or
        has gaps, because no rank may touch the bytes in a gap.
        """
        if not span.flags.c_contiguous:
            return None
        start = span.ctypes.data - self.arrays[self.local_rank].ctypes.data
        if not 0 <= start <= self.arrays[self.local_rank].nbytes - span.nbytes:
            return None
        return [array[start : start + span.nbytes].view(span.dtype) for array in self.arrays]


def find_peer_views(arenas: Sequence[SharedArena], span: Array) -> list[Array] | None:
    """Return the span's elements on every rank of the node, if it lies in one of the arenas."""
    if not isinstance(span, np.ndarray):
        return None
    each = (arena.peer_views(span) for arena in arenas)
    return next((views for views in each if views is not None), None)


def can_be_shared(array: np.ndarray) -> bool:
    """Whether existing memory can become an arena, as far as its array tells."""
    return bool(array.flags.c_contiguous and array.flags.writeable and array.nbytes >= TOKEN_BYTES)


def without_arena(arenas: Sequence[SharedArena], array: np.ndarray) -> list[SharedArena]:
    """Return the arenas without the arena of this rank's ``array``."""
    at = array_address(array)
    return [arena for arena in arenas if array_address(arena.arrays[arena.local_rank]) != at]


class SignalCounter:
    """One counter for every rank of the node. ``sync`` orders this rank's reads and writes of shared memory before it
    and after it. ``addresses``: of the counters, by local rank, for compiled code.
    """

    def __init__(self, counters: Sequence[np.ndarray], local_rank: int, sync: Callable[[], None]):
        self._count = counters[local_rank].data
        self._others = [counter.data for index, counter in enumerate(counters) if index != local_rank]
        self._local_ranks = [index for index in range(len(counters)) if index != local_rank]
        self._sync = sync
        self.addresses = [array_address(counter) for counter in counters]

    @property
    def count(self) -> int:
        """How often this rank has advanced; the same on all ranks at the same point of their work on this counter."""
        return self._count[0]

    def advance(self) -> None:
        """Advance: a rank that sees the new count sees all earlier writes of this rank."""
        self._sync()
        self._count[0] += 1

    def reached(self) -> bool:
        """Whether every other rank has advanced as often as this one."""
        count = self._count[0]
        for other in self._others:
            if other[0] < count:
                return False
        self._sync()
        return True

    def late(self) -> list[int]:
        """Return the local ranks that have not."""
        count = self._count[0]
        return [index for index, other in zip(self._local_ranks, self._others, strict=True) if other[0] < count]


class SignalCounters:
    """Signal counters by tag, allocated several at a time. ``window(nbytes)`` returns memory that the node shares, or
    None; collective.
    """

    def __init__(
        self, window: Callable[[int], np.ndarray | None], local_rank: int, size: int, sync: Callable[[], None]
    ):
        self._window, self._local_rank, self._size, self._sync = window, local_rank, size, sync
        self._blocks: dict[int, np.ndarray | None] = {}

    def signal_counter(self, tag: int) -> SignalCounter | None:
        """Return the counter of that tag; None without shared memory. Collective over the node if it must be
        allocated.
        """
        if self._size == 1:
            return SignalCounter([np.zeros(LINE_BYTES // 8, np.int64)], 0, self._sync)
        number, index = divmod(tag, LANES_AT_ONCE)
        if number not in self._blocks:
            self._blocks[number] = self._window(LANES_AT_ONCE * self._size * LINE_BYTES)
        block = self._blocks[number]
        if block is None:
            return None
        counts = block.view(np.int64).reshape(LANES_AT_ONCE, self._size, -1)
        return SignalCounter(
            [counts[index, local_rank, :1] for local_rank in range(self._size)], self._local_rank, self._sync
        )
