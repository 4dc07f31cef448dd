"""The collectives that an MPI would have of its own, among the threads of a loopback world."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringtrain.errors import TransportError
from ringtrain.transport import native_call
from ringtrain.transport.base import TestedHandle, sizes_differ
from ringtrain.transport.native_call import NativeCall, starts
from ringtrain.transport.waiting import Patience, peers

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class ThreadCollective:
    """One collective in flight: the call of each rank so far."""

    def __init__(self, size: int):
        self.calls: list[NativeCall | None] = [None] * size

    def give(self, rank: int, call: NativeCall) -> None:
        """Add a rank's call, with a copy of what it gives. Call it under the world's lock."""
        gives = call.recv if call.kind == native_call.BROADCAST else call.send
        self.calls[rank] = replace(call, send=gives.copy())

    @property
    def whole(self) -> bool:
        return None not in self.calls

    def late(self) -> list[int]:
        return [rank for rank, call in enumerate(self.calls) if call is None]

    def finish(self, rank: int, recv: np.ndarray) -> None:
        """Write the result of a rank into ``recv``. Raises TransportError if the ranks do not make one call."""
        calls = [call for call in self.calls if call is not None]
        if len({call.kind for call in calls}) > 1:
            raise TransportError(f"ranks make different collectives: {', '.join(call.kind for call in calls)}")
        result = RESULT[calls[0].kind](calls, rank)
        if result is None:
            return
        if result.size != recv.size:
            raise sizes_differ(calls[rank].root, result.size, rank, recv.size, calls[rank].kind)
        recv[...] = result


def _of_root(calls: list[NativeCall], rank: int) -> np.ndarray:
    return calls[calls[rank].root].send


def _all_gathered(calls: list[NativeCall], rank: int) -> np.ndarray:
    return np.concatenate([call.send for call in calls])


def _exchanged(calls: list[NativeCall], rank: int) -> np.ndarray:
    parts = []
    for source, (call, expected) in enumerate(zip(calls, calls[rank].recv_counts, strict=True)):
        start, stop = list(pairwise(starts(call.send_counts)))[rank]
        if stop - start != expected:
            raise sizes_differ(source, stop - start, rank, expected, call.kind)
        parts.append(call.send[start:stop])
    return np.concatenate(parts)


def reduced(arrays: Sequence[np.ndarray], op: str) -> np.ndarray:
    """Return the total in rank order, so that all ranks get the same bits."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        REDUCE[op](total, array, out=total)
    return total


def _reduced(calls: list[NativeCall], rank: int) -> np.ndarray:
    return reduced([call.send for call in calls], calls[0].op)


RESULT: dict[str, Callable[[list[NativeCall], int], np.ndarray | None]] = {
    native_call.BROADCAST: _of_root,
    native_call.ALL_GATHER: _all_gathered,
    native_call.GATHER: lambda calls, rank: _all_gathered(calls, rank) if calls[rank].root == rank else None,
    native_call.SCATTER: lambda calls, rank: _of_root(calls, rank).reshape(len(calls), -1)[rank],
    native_call.ALL_TO_ALL: _exchanged,
    native_call.ALL_REDUCE: _reduced,
    native_call.REDUCE: lambda calls, rank: _reduced(calls, rank) if calls[rank].root == rank else None,
    native_call.REDUCE_SCATTER: lambda calls, rank: _reduced(calls, rank).reshape(len(calls), -1)[rank],
}


class ThreadCollectiveHandle(TestedHandle):
    """This rank's end of a :class:`ThreadCollective`, done when all ranks have come."""

    def __init__(
        self,
        call: NativeCall,
        rank: int,
        shared: ThreadCollective,
        patience: Patience,
        check: Callable[[], None],
        names: Sequence[int],
    ):
        self._call, self._rank, self.patience, self._check, self._names = call, rank, patience, check, names
        self._shared: ThreadCollective | None = shared

    def start(self) -> None:
        """Do nothing: the collective is in flight from the start."""

    def test(self) -> bool:
        if self._shared is None:
            return True
        if not self._shared.whole:
            self._check()
            return False
        shared, self._shared = self._shared, None
        shared.finish(self._rank, self._call.recv)
        return True

    def awaited(self) -> str:
        late = self._shared.late() if self._shared else []
        return f"{peers(self._names[rank] for rank in late)} to join the {self._call.kind}"
