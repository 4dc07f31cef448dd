"""The vocabulary in which every collective is written: moves of chunks, in steps, for each rank.

A schedule is data. It speaks of chunk indices, so that one schedule serves every length and dtype: a buffer
of n elements is cut at ``floor(i · n / chunks)`` (:func:`bounds`), and a chunk may be empty.

A step is meaning, not timing. The moves of one step need nothing of one another; a move may start as soon as
its spans are free, and every rank may pause between its steps without deadlocking the others. Moves between
an ordered pair of ranks match first-in-first-out.

A move to oneself is arithmetic, not a message: it adds one span of the rank's own to another, or copies it,
both ends in one step. That is how contributions that wait in scratch are added in an order of one's choosing.
A copy of a span onto itself is what a wire does to it: nothing; or it rounds, if messages travel in fewer bits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"


@dataclass(frozen=True, slots=True)
class Move:
    """Chunks ``start:stop`` to or from ``peer``. Receivers add them into the span, or overwrite it.

    Chunk indices from ``Schedule.chunks`` on lie in scratch: room as large as the chunk ``index % chunks``. A
    span lies in the buffer or in scratch, never across.
    """

    peer: int
    start: int
    stop: int
    add: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    sends: tuple[Move, ...] = ()
    recvs: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """``size`` ranks, ``chunks`` chunks, and a function that yields the steps of one rank.

    Steps are made on demand: a rank makes its own; only verify, cost and draw look at all of them. ``wire``
    is the bound that the schedule states, and that verify holds it to: how many chunks a rank sends at most
    to others.

    ``goal`` is what the schedule does. After an all-reduce every rank holds every chunk's sum. After a
    reduce-scatter ``owner(chunk)`` holds it, and what the others hold there means nothing; an all-gather
    copies each chunk from its owner to everybody. One rank may own many chunks, or none: a reduction to one
    root is a reduce-scatter, and a broadcast is an all-gather.

    ``lanes`` is how many arrays a rank brings to be added: the buffer, and so many others less that one, which lie in
    the first scratch, each as long as the buffer. They are the rank's own to use; where it is None, each rank brings
    the buffer alone.
    """

    name: str
    size: int
    chunks: int
    make: Callable[[int], Iterable[Step]]
    wire: Callable[[int], int]
    goal: str = ALL_REDUCE
    owner: Callable[[int], int] | None = None
    lanes: Callable[[int], int] | None = None

    def inputs_of(self, rank: int) -> int:
        """How many arrays the rank brings, the buffer among them."""
        return 1 if self.lanes is None else self.lanes(rank)

    def steps(self, rank: int) -> tuple[Step, ...]:
        return tuple(self.make(rank))

    def __repr__(self) -> str:
        return f"{self.name}(ranks={self.size}, chunks={self.chunks})"


def bounds(count: int, chunks: int) -> list[int]:
    """Where the chunks of a buffer of ``count`` elements begin, and the end: ``chunks + 1`` positions."""
    return [count * i // chunks for i in range(chunks + 1)]
