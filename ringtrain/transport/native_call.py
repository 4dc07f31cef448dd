"""One call of the MPI's own collectives: its kind, and the host memory that it reads and writes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from ringtrain.transport.buffers import as_bytes

BROADCAST, ALL_GATHER, GATHER = "broadcast", "all-gather", "gather"
SCATTER, ALL_TO_ALL = "scatter", "all-to-all"
ALL_REDUCE, REDUCE_SCATTER, REDUCE = "all-reduce", "reduce-scatter", "reduce"
REDUCTIONS = (ALL_REDUCE, REDUCE_SCATTER, REDUCE)


def nothing() -> np.ndarray:
    return np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call. Memory is contiguous, and belongs to the transport until the call is done; reductions see its numbers,
    all others its bytes. The two arrays do not overlap; an all-reduce may have one array as both."""

    kind: str
    # what this rank gives: rows for all ranks in a scatter (of the root), a reduce-scatter, an all-to-all
    send: np.ndarray = field(default_factory=nothing)
    # where the result comes: rows of all ranks in a gather (on the root), an all-gather, an all-to-all. The only
    # array of a broadcast; of a reduce on the root alone
    recv: np.ndarray = field(default_factory=nothing)
    root: int = 0  # of a broadcast, a gather, a scatter, a reduce
    op: str = "sum"  # of a reduction: sum, max, min
    send_counts: Sequence[int] = ()  # bytes to each rank in an all-to-all, one after the other in ``send``
    recv_counts: Sequence[int] = ()  # bytes from each rank, in the same way

    def flat(self) -> "NativeCall":
        """Return the call with flat arrays: of numbers for a reduction, else of bytes."""
        view = np.ravel if self.kind in REDUCTIONS else as_bytes
        recv = view(self.recv)
        return replace(self, send=recv if self.send is self.recv else view(self.send), recv=recv)


def starts(counts: Sequence[int]) -> list[int]:
    """Return where the part of each rank begins, and the end."""
    return [0, *accumulate(counts)]
