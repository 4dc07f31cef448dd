"""The interface of a transport: non-blocking messages between ranks, and a few small collectives.

Messages are non-blocking, so that overlap, servers, gossip and pipelines use the same calls. Counts are 64-bit; a
transport cuts messages at 1 GiB itself; receives are posted before sends. Tags are small integers from 0: messages of
one sender, receiver and tag match first-in-first-out.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.errors import TransportError
from ringtrain.transport.activity import Activity
from ringtrain.transport.buffers import Raw
from ringtrain.transport.native_call import NativeCall
from ringtrain.transport.services import Counters, Rows, ServiceMessages
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.waiting import Patience, peers, wait_for

Moves = Sequence[tuple[int, Array | Raw]]  # (peer, span)


class Handle(ABC):
    """Messages of fixed spans (a persistent request): started many times, never again before they are done."""

    @abstractmethod
    def start(self) -> None:
        """Post all messages. The spans belong to the transport until :meth:`test` returns True."""

    @abstractmethod
    def test(self) -> bool:
        """Make progress. Returns whether all messages are done; True if it was never started."""

    @abstractmethod
    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError after ``deadline_s`` seconds, naming the awaited peers."""

    def free(self) -> None:  # noqa: B027
        """Release its resources; do not start it again. ``Transport.close`` frees handles that are left."""


class ForwardingHandle(Handle):
    """A handle that forwards every call to another one, ``inner``."""

    def __init__(self, inner: Handle):
        self._inner = inner

    def start(self) -> None:
        self._inner.start()

    def test(self) -> bool:
        return self._inner.test()

    def wait(self, deadline_s: float) -> None:
        self._inner.wait(deadline_s)

    def free(self) -> None:
        self._inner.free()


class TestedHandle(Handle):
    """A handle whose wait tests it until it is done. ``patience``: how to wait."""

    patience: Patience

    @abstractmethod
    def awaited(self) -> str:
        """Return the peers that this rank waits for, in words."""

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self.awaited, patience=self.patience)


class MessageHandle(TestedHandle):
    """One message of a :class:`TagSpace`, in flight.

    peer:   its other end; None: any rank, until one has sent it
    names:  the ranks of the peers for messages about them
    source: the rank that sent it, when it has arrived
    """

    source: int | None = None

    def __init__(self, sending: bool, peer: int | None, tag: int, names: Sequence[int], patience: Patience):
        self.sending, self.peer, self.tag, self.names, self.patience = sending, peer, tag, names, patience

    def awaited(self) -> str:
        verb = "receive" if self.sending else "send"
        peer = "any rank" if self.peer is None else peers([self.names[self.peer]])
        return f"{peer} to {verb} (tag {self.tag})"

    def of_another_length(self, sent: int, expected: int, source: int, target: int) -> TransportError:
        """Return the error of a message that has more or fewer bytes than its receiver expects."""
        return sizes_differ(self.names[source], sent, self.names[target], expected, self.tag)


def sizes_differ(source: int, sent: int, target: int, expected: int, tag: int | str) -> TransportError:
    """Return the error of a message that has another size than its receiver expects."""
    return TransportError(f"rank {source} sends {sent} bytes where rank {target} expects {expected} (tag {tag})")


class TagSpace(ABC):
    """Single messages whose tags are the caller's alone: none meets a message of a collective. Tags: 0 to 32767. The
    messages of a sender, a receiver and a tag match first in, first out.
    """

    @abstractmethod
    def send(self, span: np.ndarray, peer: int, tag: int) -> MessageHandle:
        """Start to send the bytes of ``span``, which is contiguous."""

    @abstractmethod
    def receive(self, span: np.ndarray, peer: int | None, tag: int) -> MessageHandle:
        """Start to receive as many bytes as ``span`` has, which is contiguous; ``peer`` None: from any rank. A test
        raises TransportError for a message of another length.
        """


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank, its node and the size of its world."""

    rank: int
    size: int
    node: int  # the index of this rank's node, from 0, of ``nodes``
    nodes: int
    local_rank: int  # counts within the node, which has ``local_size`` ranks
    local_size: int
    neighbours: tuple[int, ...]  # the ranks of this node, in order, this one among them


class Transport(ABC):
    """One rank's connection to the other ranks of its world."""

    rank_info: RankInfo
    patience: Patience  # how to wait here
    links: LinkTraffic  # bytes that left the node
    before_closing: list[Callable[[], None]]  # collective close callbacks, run before the transport closes
    before_leaving: list[Callable[[], None]]  # local callbacks, run before the transport is left after a rank's death
    why_not_fault_tolerant: str  # why the death of a rank ends the run, and what to do; empty if ranks can survive it
    activity: Activity  # this rank's current activity
    why_not_shared: str = ""  # why ranks of a node may lack peer views here, in words, if it is known
    why_one_thread: str = ""  # why only one thread of this rank may call the transport, in words; empty if any may
    world_ranks: Sequence[int]  # each rank's rank in the first world: this transport may connect only a group of it

    @property
    def rank(self) -> int:
        return self.rank_info.rank

    @property
    def size(self) -> int:
        return self.rank_info.size

    @property
    def node(self) -> int:
        return self.rank_info.node

    @property
    def nodes(self) -> int:
        return self.rank_info.nodes

    @property
    def local_rank(self) -> int:
        return self.rank_info.local_rank

    @property
    def local_size(self) -> int:
        return self.rank_info.local_size

    @property
    def neighbours(self) -> tuple[int, ...]:
        return self.rank_info.neighbours

    def has_lost(self) -> bool:
        """Whether a rank of this world is known to have died: then other errors may be its consequence."""
        return False

    # ── spans ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        """Return zeroed memory for an arena, of the kind that this transport sends fastest. Collective over the node:
        its ranks give the same count.
        """

    @abstractmethod
    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        """Return private memory of this rank, of the same kind: messages arrive in it before they are added."""

    @abstractmethod
    def sends(self, moves: Moves, tag: int) -> Handle:
        """Return a handle that sends each ``span`` of (peer, span)."""

    @abstractmethod
    def recvs(self, moves: Moves, tag: int) -> Handle:
        """Return a handle that receives into each ``span`` of (peer, span)."""

    @abstractmethod
    def native_allreduce(self, span: Array, op: str = "sum") -> None:
        """Run the MPI's own all-reduce in place, blocking: op sum, max or min. For small sizes, and as a baseline."""

    @abstractmethod
    def native_allreduce_start(self, span: Array) -> Handle:
        """Start a non-blocking :meth:`native_allreduce` (sum): wait for the handle before reading ``span``."""

    @abstractmethod
    def native_start(self, call: NativeCall) -> Handle:
        """Start one of the MPI's own collectives on host memory, non-blocking, and return its handle."""

    def native_run(self, call: NativeCall) -> None:
        """Run one of the MPI's own collectives, by its blocking function if it has one, which no deadline ends.
        Reductions are of one message each.
        """
        self.native_start(call).wait(math.inf)

    @abstractmethod
    def broadcast(self, span: Array, root: int = 0) -> None:
        """Copy the root's bytes to all ranks; blocking."""

    @abstractmethod
    def tag_space(self) -> TagSpace:
        """Return a new space of single messages. Collective."""

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def group(self, ranks: Sequence[int], tag: int = 0) -> "Transport | None":
        """Return a world of these ranks, in this order; None on a rank that is not among them. Collective over these
        ranks alone. Threads that make groups at once give different tags. Close it before this one.
        """

    def lasting_group(self, ranks: Sequence[int]) -> "Transport | None":
        """Return a :meth:`group` that this transport closes when it closes itself."""
        group = self.group(ranks)
        if group is not None:
            self.before_closing.append(group.close)
        return group

    # ── small control messages: JSON-able values, never pickles ───────────────────────────────────────────
    @abstractmethod
    def gather_json(self, value: Any) -> list:
        """Return ``value`` of every rank, in rank order, on every rank."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def node_barrier(self) -> None:
        """Wait for the ranks of this node."""

    # ── the node ──────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def node_window(self, nbytes: int) -> np.ndarray | None:
        """Return a writable NumPy uint8 array that the ranks of this node share, one for each node, zeroed; None
        without shared memory. Collective over the node.
        """

    @abstractmethod
    def share_mapped(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        """Make memory that exists an arena, as :meth:`allocate` makes new memory: peer views then find it.

        array:  contiguous and writable, of one size in bytes on all ranks of the node; in a shared mapping of a file
        path:   the file, as this rank's neighbours can open it: /proc/PID/fd/N while the descriptor is open
        offset: of the array's first element in the file, in bytes

        Return whether all ranks of the node could map the arrays of all; if not, nothing has changed. The first bytes
        of the array change during the call. Collective over the node.
        """

    @abstractmethod
    def unshare_mapped(self, array: np.ndarray) -> None:
        """End the effect of :meth:`share_mapped` on this rank. Peer views that were made before stay valid."""

    @abstractmethod
    def peer_views(self, span: Array) -> list[Array] | None:
        """Return the elements of ``span`` in the memory of each of ``neighbours``, its own included, for this rank to
        read and write; None if ``span`` does not lie in memory of :meth:`allocate` or :meth:`share_mapped` that
        the node shares, or has gaps.
        """

    @abstractmethod
    def signal_counter(self, tag: int) -> SignalCounter | None:
        """Return counters by which the ranks of this node wait for one another; a tag has its own. None without shared
        memory. Collective over the node.
        """

    @abstractmethod
    def board(self, nbytes: int) -> Rows:
        """Return a zeroed row of ``nbytes``, a multiple of 8, for each rank of the world; all ranks read all rows.
        Collective.
        """

    @abstractmethod
    def counters(self, count: int) -> Counters:
        """Return ``count`` numbers on rank 0 that every rank adds to; collective."""

    @abstractmethod
    def service_messages(self) -> ServiceMessages:
        """Return messages of any length for a service; collective. The caller closes them."""

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def abort(self, code: int) -> None:
        """End every rank now, with this exit status."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources of this transport; collective."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line for the user: the library and its version."""


def _forward(name: str) -> Callable[..., Any]:
    def call(self: "ForwardingTransport", *arguments: Any, **named: Any) -> Any:
        return getattr(self._inner, name)(*arguments, **named)

    return call


_Untyped: Any = object  # mypy: the methods below are made at run time


class ForwardingTransport(Transport, _Untyped):
    """A transport that forwards every call to another one, ``inner``."""

    vars().update({name: _forward(name) for name in (*sorted(Transport.__abstractmethods__), "has_lost")})

    def __init__(self, inner: Transport):
        self._inner, self.rank_info, self.patience, self.links = inner, inner.rank_info, inner.patience, inner.links
        self.before_closing, self.before_leaving = inner.before_closing, inner.before_leaving
        self.why_not_fault_tolerant, self.why_not_shared = inner.why_not_fault_tolerant, inner.why_not_shared
        self.activity = inner.activity
        self.why_one_thread, self.world_ranks = inner.why_one_thread, inner.world_ranks
