"""A world inside one process, a thread for each rank.

A send ends only when its receive has been posted (every send is synchronous), so that a schedule that relies on
buffering always stalls.
"""

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Handle, MessageHandle, Moves, RankInfo, TagSpace, TestedHandle, Transport
from ringtrain.transport.buffers import aligned_zeros, as_bytes
from ringtrain.transport.launch_environment import number_nodes
from ringtrain.transport.loopback import OwnCounters
from ringtrain.transport.native_call import ALL_REDUCE, NativeCall
from ringtrain.transport.services import Counters, Rows, ServiceMessages
from ringtrain.transport.shared_arena import (
    SharedArena,
    SignalCounter,
    SignalCounters,
    can_be_shared,
    find_peer_views,
    without_arena,
)
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.waiting import Patience, peers
from tests.loopback.native import ThreadCollective, ThreadCollectiveHandle, reduced
from tests.loopback.single_messages import ThreadMail, ThreadSpace

MEET_S = 120.0  # how long a rank waits for the others in a barrier, a gather, a broadcast


class LoopbackWorld:
    """``size`` ranks on ``nodes`` nodes: contiguous and as even as possible, or by a node for each rank. Collectives
    give up after ``meet_s``. ``shares``: whether the ranks of a node share memory.
    """

    def __init__(self, size: int, nodes: int | Sequence[int] = 1, meet_s: float = MEET_S, shares: bool = True):
        self.size, self.meet_s, self.shares = size, meet_s, shares
        self.node_of = [rank * nodes // size for rank in range(size)] if isinstance(nodes, int) else list(nodes)
        self.lock = threading.Lock()
        self.messages = ThreadMail()  # of schedules
        self.collectives: dict[int, ThreadCollective] = {}  # those that not all ranks have joined, by number
        self.mails: dict[int, ThreadMail] = {}  # by number
        self.groups: dict[tuple, LoopbackWorld] = {}  # by ranks, and the number among groups of these
        self.failure: BaseException | None = None
        self.everyone = Rendezvous(size)
        self.neighbours = [Rendezvous(self.node_of.count(node)) for node in range(max(self.node_of) + 1)]

    def transport(self, rank: int, allocate: Callable[[int, DTypeLike], Array] = aligned_zeros) -> Transport:
        return ThreadTransport(self, rank, allocate)

    def run(self, function: Callable[[Transport], Any]) -> list:
        """Run ``function(transport)`` on every rank, a thread each, and return the values in rank order. Raises the
        first error of a rank; the other ranks then end at their next test or wait. Threads that a rank started end with
        it.
        """
        values: list = [None] * self.size

        def body(rank: int) -> None:
            transport = self.transport(rank)
            try:
                values[rank] = function(transport)
            except BaseException as error:
                self.fail(error)
            finally:
                transport.abandon()

        threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}") for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return values

    def group(self, ranks: tuple[int, ...], number: tuple[int, int]) -> "LoopbackWorld":
        """Return the world of some ranks: the same for each of them. number: (tag, count of earlier ones)."""
        with self.lock:
            if (ranks, number) not in self.groups:
                homes = number_nodes([self.node_of[rank] for rank in ranks])
                group = self.groups[ranks, number] = LoopbackWorld(len(ranks), homes, self.meet_s, self.shares)
                if self.failure is not None:
                    group.fail(self.failure)
            return self.groups[ranks, number]

    def fail(self, error: BaseException) -> None:
        with self.lock:
            self.failure = self.failure or error
            groups = list(self.groups.values())
        for group in groups:
            group.fail(error)
        for rendezvous in (self.everyone, *self.neighbours):
            rendezvous.barrier.abort()

    def check(self) -> None:
        if self.failure is not None:
            raise TransportError(f"another rank failed: {self.failure}")


class Rendezvous:
    """Where a group of threads waits for one another, and exchanges values."""

    def __init__(self, size: int):
        self.barrier = threading.Barrier(size)
        self.table: list = [None] * size


def _let_others() -> None:
    time.sleep(0)  # another thread has the interpreter


class ThreadHandle(TestedHandle):
    """Prepared sends or receives of a loopback world: at each start, messages of its mail."""

    patience = Patience(pause=_let_others)

    def __init__(self, space: "ThreadSpace", sending: bool, moves: Moves, tag: int):
        self._space, self._sending, self._tag = space, sending, tag
        self._moves = [(as_bytes(span), peer) for peer, span in moves]
        self._messages: list[MessageHandle] = []
        self.post = self._post

    def start(self) -> None:
        self.post()

    def _post(self) -> None:
        post = self._space.send if self._sending else self._space.receive
        self._messages = [post(span, peer, self._tag) for span, peer in self._moves]

    def test(self) -> bool:
        return all(message.test() for message in self._messages)

    def awaited(self) -> str:
        late = peers(self._space.names[message.peer] for message in self._messages if not message.test())
        return f"{late} to {'receive' if self._sending else 'send'} (tag {self._tag})"


def _in_order() -> None:
    """Return at once: threads of one interpreter see one another's writes in order."""


class ThreadTransport(Transport):
    """One rank's end of a :class:`LoopbackWorld`."""

    def __init__(self, world: LoopbackWorld, rank: int, allocate: Callable[[int, DTypeLike], Array]):
        self._world, self._allocate = world, allocate
        node, local_rank = world.node_of[rank], world.node_of[:rank].count(world.node_of[rank])
        neighbours = tuple(other for other, home in enumerate(world.node_of) if home == node)
        self.rank_info = RankInfo(
            rank, world.size, node, len(world.neighbours), local_rank, len(neighbours), neighbours
        )
        self.links = LinkTraffic(neighbours)
        self.patience = Patience(pause=_let_others, poll=world.check)
        self._arenas: list[SharedArena] = []
        self.before_closing, self.before_leaving = [], []
        self.why_not_fault_tolerant = "this is a single process, and no other rank could survive: mpirun --with-ft ulfm"
        self.activity = Activity()
        self._collectives_begun = self._mails_begun = 0
        self._groups_begun: Counter = Counter()
        self.world_ranks = range(world.size)
        self._signal_counters = SignalCounters(self.node_window, local_rank, len(neighbours), _in_order)

    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        memory = self._allocate(count, dtype)
        if isinstance(memory, np.ndarray) and self._world.shares:
            self._arenas.append(SharedArena(self._gather_node(as_bytes(memory)), self.local_rank))
        return memory

    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        return self._allocate(count, dtype)

    def sends(self, moves: Moves, tag: int) -> Handle:
        handle = ThreadHandle(self._space(self._world.messages), True, moves, tag)
        handle.post = self.links.counting(handle.post, moves)
        return handle

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return ThreadHandle(self._space(self._world.messages), False, moves, tag)

    def native_allreduce(self, span, op: str = "sum") -> None:
        span[...] = reduced(self._gather(span.copy()), op)

    def native_allreduce_start(self, span) -> Handle:
        return self.native_start(NativeCall(ALL_REDUCE, span, span))

    def native_start(self, call: NativeCall) -> Handle:
        self._world.check()
        call, number = call.flat(), self._collectives_begun
        with self._world.lock:
            shared = self._world.collectives.setdefault(number, ThreadCollective(self.size))
            shared.give(self.rank, call)
            if shared.whole:
                del self._world.collectives[number]
        self._collectives_begun += 1
        return ThreadCollectiveHandle(call, self.rank, shared, self.patience, self._world.check, self.world_ranks)

    def tag_space(self) -> TagSpace:
        with self._world.lock:
            mail = self._world.mails.setdefault(self._mails_begun, ThreadMail())
        self._mails_begun += 1
        return self._space(mail)

    def _space(self, mail: ThreadMail) -> ThreadSpace:
        return ThreadSpace(mail, self.rank, self.patience, self._world.check, self.world_ranks)

    def group(self, ranks: Sequence[int], tag: int = 0) -> Transport | None:
        if self.rank not in ranks:
            return None
        key = tuple(ranks)
        world = self._world.group(key, (tag, self._groups_begun[key, tag]))
        self._groups_begun[key, tag] += 1
        group = world.transport(key.index(self.rank), self._allocate)
        group.world_ranks = [self.world_ranks[rank] for rank in ranks]
        group.links = LinkTraffic(group.neighbours, self.links)
        self.before_leaving.append(group.abandon)
        return group

    def broadcast(self, span, root: int = 0) -> None:
        contributions = self._gather(span.copy() if self.rank == root else None)
        span[...] = contributions[root]

    def gather_json(self, value: Any) -> list:
        return [json.loads(text) for text in self._gather(json.dumps(value))]

    def barrier(self) -> None:
        self._gather(None)

    def node_barrier(self) -> None:
        self._gather_node(None)

    def node_window(self, nbytes: int) -> np.ndarray | None:
        if not self._world.shares:
            return None
        return self._gather_node(aligned_zeros(nbytes, np.uint8) if self.local_rank == 0 else None)[0]

    def share_mapped(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        """Threads share all memory: the path is not needed."""
        shares = self._world.shares and can_be_shared(array)
        arrays = self._gather_node(as_bytes(array) if shares else None)
        if len({None if each is None else each.size for each in arrays}) > 1 or not shares:
            return False
        self._arenas.append(SharedArena(arrays, self.local_rank))
        return True

    def unshare_mapped(self, array: np.ndarray) -> None:
        self._arenas = without_arena(self._arenas, array)

    def peer_views(self, span: Array) -> list | None:
        return [span] if self.local_size == 1 else find_peer_views(self._arenas, span)

    def signal_counter(self, tag: int) -> SignalCounter | None:
        return self._signal_counters.signal_counter(tag) if self._world.shares else None

    def board(self, nbytes: int) -> Rows:
        rows = aligned_zeros(self.size * nbytes, np.uint8).reshape(self.size, nbytes) if self.rank == 0 else None
        return Rows(self._gather(rows)[0], range(self.size))

    def counters(self, count: int) -> Counters:
        numbers = self._gather(np.zeros(count) if self.rank == 0 else None)[0]
        return LocalCounters(numbers, self._world.lock, self.barrier, self.rank)

    def service_messages(self) -> ServiceMessages:
        boxes = self._gather([deque() for _ in range(self.size)] if self.rank == 0 else None)[0]
        return ThreadServiceMessages(boxes, self.rank, self._world.lock)

    def abort(self, code: int) -> None:
        error = SystemExit(code)
        self._world.fail(error)
        raise error

    def close(self) -> None:
        for action in self.before_closing:
            action()
        self.barrier()

    def abandon(self) -> None:
        """End its threads. Not collective."""
        for action in reversed(self.before_leaving):
            action()
        self.before_leaving.clear()

    def describe(self) -> str:
        return f"{self.size} threads of one process, no MPI"

    def _gather(self, value: Any) -> list:
        """Give ``value``, wait for the others, and return the values of all."""
        return self._exchange(value, self._world.everyone, self.rank)

    def _gather_node(self, value: Any) -> list:
        return self._exchange(value, self._world.neighbours[self.node], self.local_rank)

    def _exchange(self, value: Any, rendezvous: Rendezvous, seat: int) -> list:
        rendezvous.table[seat] = value
        self._pass(rendezvous)
        values = list(rendezvous.table)
        self._pass(rendezvous)  # no rank gives its next value before all have read these
        return values

    def _pass(self, rendezvous: Rendezvous) -> None:
        try:
            rendezvous.barrier.wait(self._world.meet_s)
        except threading.BrokenBarrierError:
            self._world.check()
            waited = f"rank {self.rank} waited {self._world.meet_s:g} s for the other ranks to meet"
            raise StalledError(waited) from None


class LocalCounters(OwnCounters):
    """Counters in the memory of all threads. ``numbers`` is the same array on every rank."""

    def __init__(self, numbers: np.ndarray, lock, barrier: Callable[[], None], rank: int):
        self._numbers, self._lock, self._barrier, self._rank = numbers, lock, barrier, rank

    def take(self, place: int, amount: float) -> float:
        with self._lock:
            return super().take(place, amount)

    def add(self, start: int, values: np.ndarray) -> None:
        with self._lock:
            super().add(start, values)

    def read(self) -> np.ndarray:
        with self._lock:
            return super().read()

    def clear(self) -> None:
        self._barrier()
        if self._rank == 0:
            super().clear()
        self._barrier()


class ThreadServiceMessages(ServiceMessages):
    """This rank's end of ``boxes``, a queue of (sender, tag, message) for each rank, the same list on every rank."""

    def __init__(self, boxes: list[deque], rank: int, lock):
        self._boxes, self._rank, self._lock = boxes, rank, lock

    def send(self, peer: int, tag: int, data: bytes) -> None:
        with self._lock:
            self._boxes[peer].append((self._rank, tag, bytes(data)))

    def receive(self, tag: int, peer: int | None = None) -> tuple[int, bytes] | None:
        with self._lock:
            for message in self._boxes[self._rank]:
                sender, message_tag, data = message
                if message_tag == tag and peer in (None, sender):
                    self._boxes[self._rank].remove(message)
                    return sender, data
        return None

    def close(self) -> None:
        pass
