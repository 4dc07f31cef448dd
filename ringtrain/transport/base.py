"""What a transport offers: asynchronous moves of spans between ranks, and the few small collectives of a
run's start.

Everything is asynchronous, so that overlap, servers, gossip, pipelines and watchdogs need no second way.
Counts are 64-bit; a transport cuts messages at 1 GiB itself; receives are posted before sends. Tags are small
integers from 0: messages match first-in-first-out per (ordered pair of ranks, tag).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ringtrain.transport.activity import Activity
from ringtrain.transport.counters import Counters
from ringtrain.transport.rows import Rows
from ringtrain.transport.shared_arena import SignalCounter
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.waiting import Patience


class Handle(ABC):
    """Moves that can be started again and again on the same spans (a persistent request), one start at a
    time."""

    @abstractmethod
    def start(self) -> None:
        """Post all of the moves. The spans belong to the transport until :meth:`test` says True."""

    @abstractmethod
    def test(self) -> bool:
        """Whether all of it is done; makes progress. True when it was never started."""

    @abstractmethod
    def wait(self, deadline_s: float) -> None:
        """Return when done. Raises StalledError, naming the peers that are awaited, ``deadline_s`` seconds
        from now."""

    def free(self) -> None:  # noqa: B027
        """Give back what is held for it; it is not started again. The end of the transport frees the rest."""


class Transport(ABC):
    """One rank's end of a world of ``size`` ranks. ``local_rank`` of ``local_size`` counts within the
    node."""

    rank: int
    size: int
    node: int  # index of this rank's node, from 0
    nodes: int
    local_rank: int
    local_size: int
    neighbours: tuple[int, ...]  # the ranks of this node, in order, this one among them
    patience: Patience  # how to wait here
    links: LinkTraffic  # what left the node
    before_closing: list[
        Callable[[], None]
    ]  # called before it closes: of what was made with it and is closed by all ranks too
    before_leaving: list[Callable[[], None]]  # called before it is left after a death, when nobody is met any more
    why_not_fault_tolerant: str  # why the death of a rank cannot be survived here, and what to do; empty where it can
    activity: Activity  # what this rank is doing
    apart: str = ""  # why ranks of a node may lack twins here, in words, where that is known

    # ── spans ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def allocate(self, count: int, dtype):
        """Memory for an arena, zeroed: whatever this transport moves fastest. Collective over the node: all of its
        ranks ask for the same."""

    @abstractmethod
    def scratch(self, count: int, dtype):
        """Memory of this rank alone, of the same kind: what messages arrive in before they are added."""

    @abstractmethod
    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        """A handle for sending each ``span`` of (peer, span)."""

    @abstractmethod
    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        """A handle for receiving into each ``span`` of (peer, span)."""

    @abstractmethod
    def native_allreduce(self, span, op: str = "sum", source=None) -> None:
        """The MPI's own all-reduce, blocking: op sum, max or min, of ``source`` into ``span``, or in place where
        there is no source. For small sizes, and as a baseline."""

    @abstractmethod
    def native_allreduce_start(self, span) -> Handle:
        """A started, non-blocking :meth:`native_allreduce` (sum): wait for it before reading ``span``."""

    @abstractmethod
    def broadcast(self, span, root: int = 0) -> None:
        """The same bytes everywhere; blocking."""

    # ── small control messages: JSON-able values, never pickles ───────────────────────────────────────────
    @abstractmethod
    def gather_json(self, value) -> list:
        """``value`` of every rank, in rank order, on every rank."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def node_barrier(self) -> None:
        """Wait for the ranks of this node."""

    # ── the node ──────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def node_window(self, nbytes: int):
        """A writable NumPy uint8 array that the ranks of this node share, allocated once a node, zeroed;
        collective over the node. None where shared memory is not to be had."""

    @abstractmethod
    def peer_views(self, span) -> list | None:
        """The elements of ``span`` in the memory of each of ``neighbours``, its own among them, for this rank to read
        and write; None where ``span`` does not lie in memory of :meth:`allocate` that the node shares, or has gaps."""

    @abstractmethod
    def signal_counter(self, tag: int) -> SignalCounter | None:
        """Counters by which the ranks of this node wait for one another, for the work of this tag; None where there is
        no shared memory. Collective over the node."""

    @abstractmethod
    def board(self, nbytes: int) -> Rows:
        """A zeroed row of ``nbytes``, a multiple of 8, for each rank of the world, which all ranks read; collective."""

    @abstractmethod
    def counters(self, count: int) -> Counters:
        """So many numbers on rank 0 that every rank adds to; collective."""

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def abort(self, code: int) -> None:
        """End every rank now, with this exit status."""

    @abstractmethod
    def close(self) -> None:
        """Free what this transport holds; collective."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: library and version, or what stands in for it."""
