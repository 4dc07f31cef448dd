"""Schedules of collectives as data: for each rank steps, which are moves of chunks.

A schedule names chunks by index, so that it works for every length and dtype: a buffer of n elements is cut at
``floor(i · n / chunks)`` (:func:`bounds`), and a chunk may be empty.

A step is no barrier. The moves of one step do not depend on one another; a move may start as soon as its spans are
free, and every rank may pause between its steps without deadlocking the others. Moves between an ordered pair of ranks
match first-in-first-out.

A move from a rank to itself is arithmetic, not a message: it adds one span to another, or copies it; its send and its
receive are in one step. So contributions in scratch are added in a chosen order. A copy of a span onto itself rounds it
as a message would be rounded; it does nothing if messages are not rounded.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"
Owner = Callable[[int], int]  # the owner of a chunk


@dataclass(frozen=True, slots=True)
class Move:
    """Chunks ``start:stop`` to or from ``peer``. The receiver adds them into the span, or overwrites it.

    Chunk indices from ``Schedule.chunks`` on lie in scratch: each is as large as the chunk ``index % chunks``. A span
    lies in the buffer or in scratch, never across.
    """

    peer: int
    start: int
    stop: int
    add: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The sends and receives of one step of one rank."""

    sends: tuple[Move, ...] = ()
    recvs: tuple[Move, ...] = ()


def without_owner(chunk: int) -> int:
    """Raises ValueError: the owner function of an all-reduce."""
    raise ValueError("an all-reduce ends on all ranks: its chunks have no owners")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of ``size`` ranks over ``chunks`` chunks; ``make(rank)`` yields the steps of one rank.

    Steps are made on demand: a rank makes its own; only verify, cost and draw read all of them.
    ``max_chunks_sent(rank)`` is the bound that the schedule states and verify checks: the largest number of chunks that
    the rank sends to others.

    ``goal`` is the result of the schedule. After an all-reduce every rank holds every chunk's sum. After a
    reduce-scatter ``owner(chunk)`` holds it, and that chunk means nothing on the other ranks; an all-gather copies each
    chunk from its owner to all ranks. One rank may own many chunks, or none: a reduction to one root is a
    reduce-scatter, and a broadcast is an all-gather.

    ``inputs_per_rank(rank)`` is the number of arrays to add from that rank: the buffer, and further arrays in the first
    scratch, each as long as the buffer. The schedule may overwrite them. None: each rank has the buffer only.
    """

    name: str
    size: int
    chunks: int
    make: Callable[[int], Iterable[Step]]
    max_chunks_sent: Callable[[int], int]
    goal: str = ALL_REDUCE
    owner: Owner = without_owner
    inputs_per_rank: Callable[[int], int] | None = None

    def inputs_of(self, rank: int) -> int:
        """Return the number of arrays that the rank adds, the buffer included."""
        return 1 if self.inputs_per_rank is None else self.inputs_per_rank(rank)

    def steps(self, rank: int) -> tuple[Step, ...]:
        return tuple(self.make(rank))

    def __repr__(self) -> str:
        return f"{self.name}(ranks={self.size}, chunks={self.chunks})"


def bounds(count: int, chunks: int) -> list[int]:
    """Return the start of each chunk of a buffer of ``count`` elements, and the end: ``chunks + 1`` positions."""
    return [count * i // chunks for i in range(chunks + 1)]
