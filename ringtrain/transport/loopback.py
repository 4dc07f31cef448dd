"""A world of one rank, without an MPI: it exchanges nothing, and all memory of the node is its own."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Handle, MessageHandle, Moves, RankInfo, TagSpace, Transport, sizes_differ
from ringtrain.transport.buffers import aligned_zeros
from ringtrain.transport.fault_tolerance import START_TOLERANT
from ringtrain.transport.native_call import BROADCAST, NativeCall
from ringtrain.transport.services import Counters, Rows, ServiceMessages
from ringtrain.transport.shared_arena import SignalCounter, SignalCounters, can_be_shared
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.waiting import Patience


class Done(Handle):
    """A handle of messages or a collective of one rank, which is complete before it starts."""

    def start(self) -> None:
        pass

    def test(self) -> bool:
        return True

    def wait(self, deadline_s: float) -> None:
        pass


class NoMessage(MessageHandle):
    """A message with a rank that does not exist: its wait ends by the deadline."""

    def start(self) -> None:
        pass

    def test(self) -> bool:
        return False


class NoMessages(TagSpace):
    """Single messages of a rank that has no peers."""

    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        return NoMessage(True, peer, tag, [0], Patience())

    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        return NoMessage(False, peer, tag, [0], Patience())


class OwnCounters(Counters):
    """Counters that one rank alone adds to."""

    def __init__(self, count: int):
        self._numbers = np.zeros(count)

    def take(self, index: int, amount: float) -> float:
        before = float(self._numbers[index])
        self._numbers[index] += amount
        return before

    def add(self, start: int, values: np.ndarray) -> None:
        self._numbers[start : start + len(values)] += values

    def read(self) -> np.ndarray:
        return self._numbers.copy()

    def clear(self) -> None:
        self._numbers[...] = 0


class OwnServiceMessages(ServiceMessages):
    """Messages of a rank to itself."""

    def __init__(self) -> None:
        self._messages: dict[int, deque[bytes]] = {}

    def send(self, peer: int, tag: int, data: bytes) -> None:
        self._messages.setdefault(tag, deque()).append(bytes(data))

    def receive(self, tag: int, peer: int | None = None) -> tuple[int, bytes] | None:
        queue = self._messages.get(tag)
        return (0, queue.popleft()) if queue else None

    def close(self) -> None:
        self._messages.clear()


class Loopback(Transport):
    """The rank of this process. ``allocate(count, dtype)`` makes its memory."""

    def __init__(self, allocate: Callable[[int, DTypeLike], Array] = aligned_zeros):
        self._allocate = allocate
        self.rank_info = RankInfo(rank=0, size=1, node=0, nodes=1, local_rank=0, local_size=1, neighbours=(0,))
        self.patience, self.links, self.activity = Patience(), LinkTraffic(self.neighbours), Activity()
        self.before_closing, self.before_leaving = [], []
        self.why_not_fault_tolerant = f"this is a single process, and no other rank could survive it: {START_TOLERANT}"
        self.world_ranks = range(1)
        self._signal_counters = SignalCounters(self.node_window, 0, 1, lambda: None)

    # ── spans ─────────────────────────────────────────────────────────────────────────────────────────────
    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        return self._allocate(count, dtype)

    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        return self._allocate(count, dtype)

    def sends(self, moves: Moves, tag: int) -> Handle:
        assert not moves, "a rank alone has no peers"
        return Done()

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self.sends(moves, tag)

    def native_allreduce(self, span: Array, op: str = "sum") -> None:
        pass

    def native_allreduce_start(self, span: Array) -> Handle:
        return Done()

    def native_start(self, call: NativeCall) -> Handle:
        call = call.flat()
        if call.kind != BROADCAST and call.send.size != call.recv.size:
            raise sizes_differ(0, call.send.size, 0, call.recv.size, call.kind)
        if call.kind != BROADCAST:
            call.recv[...] = call.send
        return Done()

    def broadcast(self, span: Array, root: int = 0) -> None:
        pass

    def tag_space(self) -> TagSpace:
        return NoMessages()

    def group(self, ranks: Sequence[int], tag: int = 0) -> Transport | None:
        return Loopback(self._allocate) if self.rank in ranks else None

    # ── small control messages ────────────────────────────────────────────────────────────────────────────
    def gather_json(self, value: Any) -> list:
        return [json.loads(json.dumps(value))]

    def barrier(self) -> None:
        pass

    def node_barrier(self) -> None:
        pass

    # ── the node ──────────────────────────────────────────────────────────────────────────────────────────
    def node_window(self, nbytes: int) -> np.ndarray:
        return aligned_zeros(nbytes, np.uint8)

    def share_mapped(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        return can_be_shared(array)

    def unshare_mapped(self, array: np.ndarray) -> None:
        pass

    def peer_views(self, span: Array) -> list[Array]:
        return [span]

    def signal_counter(self, tag: int) -> SignalCounter | None:
        return self._signal_counters.signal_counter(tag)

    def board(self, nbytes: int) -> Rows:
        return Rows(self.node_window(nbytes).reshape(1, nbytes), [0])

    def counters(self, count: int) -> Counters:
        return OwnCounters(count)

    def service_messages(self) -> ServiceMessages:
        return OwnServiceMessages()

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────────
    def abort(self, code: int) -> None:
        raise SystemExit(code)

    def close(self) -> None:
        for action in self.before_closing:
            action()

    def describe(self) -> str:
        return "one process, no MPI"
