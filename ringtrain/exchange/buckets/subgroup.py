"""Some of a transport's ranks, numbered from 0: messages among them, and their sums and values over such messages."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.exchange import tags
from ringtrain.transport.base import ForwardingTransport, Handle, Moves, Transport
from ringtrain.transport.rows import Rows

OUTSIDE = -1  # the number of a rank that is not in the group


class Subgroup(ForwardingTransport):
    """The ``ranks`` of the transport, in order. A rank that is not among them has the number OUTSIDE: it may read the
    group's size, and moves nothing.

    Collectives go over messages between each two ranks, for the few numbers that a strategy exchanges besides buckets.
    The group has no memory in common, and no broadcast, board, counters or service messages: NotImplementedError.
    """

    def __init__(self, transport: Transport, ranks: Sequence[int], deadline_s: float):
        super().__init__(transport)
        self._ranks, self._deadline_s = tuple(ranks), deadline_s
        near = tuple(number for number, rank in enumerate(ranks) if rank in transport.neighbours)
        number = self._ranks.index(transport.rank) if transport.rank in self._ranks else OUTSIDE
        local = near.index(number) if number in near else 0
        self.seat = replace(
            self.seat, rank=number, size=len(ranks), local_rank=local, local_size=len(near), neighbours=near
        )
        self.world_ranks = [transport.world_ranks[rank] for rank in ranks]
        self._sums: dict[tuple[int, str], GroupSum] = {}

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._inner.sends([(self._ranks[peer], span) for peer, span in moves], tag)

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._inner.recvs([(self._ranks[peer], span) for peer, span in moves], tag)

    @property
    def others(self) -> list[int]:
        """The numbers of the other ranks."""
        return [number for number in range(self.size) if number != self.rank]

    def world_rank(self, number: int) -> int:
        """Return the rank of number ``number`` of the group in its world."""
        return self._ranks[number]

    # ── collectives ───────────────────────────────────────────────────────────────────────────────────────
    def native_allreduce_start(self, span: Array) -> Handle:
        """Start the sum of a flat host array, added in the order of ranks. One sum of a size and type at a time."""
        key = span.size, span.dtype.str
        if key not in self._sums:
            self._sums[key] = GroupSum(self, span.size, span.dtype)
        return self._sums[key].over(np.asarray(span))

    def native_allreduce(self, span: Array, op: str = "sum", source: Array | None = None) -> None:
        raise NotImplementedError

    def gather_json(self, value: Any) -> list:
        own = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = np.zeros(self.size)
        sizes[self.rank] = own.size
        self.native_allreduce_start(sizes).wait(self._deadline_s)
        texts = [np.empty(int(size), np.uint8) for size in sizes]
        texts[self.rank] = own
        receives = self.recvs([(other, texts[other]) for other in self.others], tags.GROUP)
        sends = self.sends([(other, own) for other in self.others], tags.GROUP)
        for handle in (receives, sends):
            handle.start()
        for handle in (receives, sends):
            handle.wait(self._deadline_s)
            handle.free()
        return [json.loads(text.tobytes()) for text in texts]

    def barrier(self) -> None:
        self.native_allreduce_start(np.zeros(1)).wait(self._deadline_s)

    def broadcast(self, span: Array, root: int = 0) -> None:
        raise NotImplementedError

    def node_barrier(self) -> None:
        raise NotImplementedError

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        return self.scratch(count, dtype)

    def node_window(self, nbytes: int) -> None:
        return None

    def share_mapped(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        return False

    def peer_views(self, span: Array) -> None:
        return None

    def signal_counter(self, tag: int) -> None:
        return None

    def board(self, nbytes: int) -> Rows:
        raise NotImplementedError

    def counters(self, count: int):
        raise NotImplementedError

    def service_messages(self):
        raise NotImplementedError


class GroupSum(Handle):
    """Sums of ``count`` numbers: each rank sends its own to all others, and adds those of all in the order of ranks."""

    def __init__(self, group: Subgroup, count: int, dtype: DTypeLike):
        self._parts = np.zeros((group.size, count), dtype)
        self._own = self._parts[group.rank]
        self._receives = group.recvs([(other, self._parts[other]) for other in group.others], tags.GROUP)
        self._sends = group.sends([(other, self._own) for other in group.others], tags.GROUP)
        self._span: np.ndarray | None = None

    def over(self, span: np.ndarray) -> "GroupSum":
        """Start the sum of ``span``, in place."""
        self._span = span
        self.start()
        return self

    def start(self) -> None:
        self._own[...] = self._span
        self._receives.start()
        self._sends.start()

    def test(self) -> bool:
        done = self._receives.test() and self._sends.test()
        if done:
            self._finish()
        return done

    def wait(self, deadline_s: float) -> None:
        self._receives.wait(deadline_s)
        self._sends.wait(deadline_s)
        self._finish()

    def _finish(self) -> None:
        if self._span is not None:
            self._span[...] = self._parts[0]
            for part in self._parts[1:]:
                self._span += part
            self._span = None
