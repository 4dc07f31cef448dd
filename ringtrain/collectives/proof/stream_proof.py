"""Proof that a streamed all-reduce needs no more waits than its program has.

Accesses of two ranks to one part of a slot, of which one writes, must be ordered by a wait. Whatever the speed of the
ranks, every one then reads what any other order of them would have let it read: so the sums of a single order of
events, which is walked through here, are those of all. Waits are for counters that only grow: if one order of events
comes to its end, all do.

Order is kept by vector clocks: for each rank, how many of its events lie before an event. Source: Mattern 1989.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringtrain.collectives import texts
from ringtrain.collectives.execution.stream_program import (
    COPY_OTHERS,
    PUBLISH,
    PUBLISH_OTHERS,
    SLOTS,
    SUM,
    SUM_OWN,
    Instruction,
    actions_of,
)
from ringtrain.errors import ScheduleError

Program = tuple[Instruction, ...]
Part = tuple[int, int, int]  # rank and number of the slot, and whose slice
Clock = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a rank to a part of a slot: its own ``event``-th event, counted from 1, and the clock then."""

    rank: int
    event: int
    clock: Clock
    writes: bool


@dataclass
class Walk:
    """One order of the events of ``size`` ranks with ``slots`` slots each."""

    size: int
    slots: int
    clocks: list[list[int]] = field(init=False)
    accesses: dict[Part, list[Access]] = field(default_factory=dict)
    held: dict[Part, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # chunk and contributions of a part
    published: dict[tuple[int, int], Clock] = field(default_factory=dict)  # by rank and chunk
    summed: dict[tuple[int, int], Clock] = field(default_factory=dict)
    sums: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)  # by rank, chunk and slice

    def __post_init__(self) -> None:
        self.clocks = [[0] * self.size for _ in range(self.size)]

    def may(self, action: str, chunk: int) -> bool:
        """Whether all ranks have done what the action waits for."""
        awaited = {SUM: self.published, SUM_OWN: self.published, COPY_OTHERS: self.summed}.get(action)
        return awaited is None or all((rank, chunk) in awaited for rank in range(self.size))

    def do(self, rank: int, action: str, chunk: int) -> None:
        """Make the event. Raises ScheduleError if the rank reads the wrong chunk, or unordered with a write."""
        ranks, others = range(self.size), [other for other in range(self.size) if other != rank]
        clock = self.clocks[rank]
        awaited = {SUM: self.published, SUM_OWN: self.published, COPY_OTHERS: self.summed}.get(action, {})
        for other in ranks:
            for place, count in enumerate(awaited.get((other, chunk), ())):
                clock[place] = max(clock[place], count)
        clock[rank] += 1
        if action in (PUBLISH, PUBLISH_OTHERS):
            for part in ranks if action == PUBLISH else others:
                self._write(rank, chunk, part, (rank,))
            self.published[rank, chunk] = tuple(clock)
        elif action == SUM:
            for part in ranks:
                self.sums[rank, chunk, part] = self._sum(rank, chunk, part)
        elif action == SUM_OWN:
            self.sums[rank, chunk, rank] = total = self._sum(rank, chunk, rank)
            self._write(rank, chunk, rank, total)
            self.summed[rank, chunk] = tuple(clock)
        elif action == COPY_OTHERS:
            for other in others:
                self.sums[rank, chunk, other] = self._read(rank, other, chunk, other)

    def _sum(self, rank: int, chunk: int, part: int) -> tuple[int, ...]:
        """Return the contributions in the order of ranks, its own among them."""
        return tuple(
            each
            for source in range(self.size)
            for each in ((rank,) if source == rank else self._read(rank, source, chunk, part))
        )

    def _read(self, rank: int, source: int, chunk: int, part: int) -> tuple[int, ...]:
        where = source, chunk % self.slots, part
        self._touch(rank, where, chunk, writes=False)
        found, value = self.held.get(where, (None, ()))
        if found != chunk:
            raise ScheduleError(texts.STREAM_WRONG_CHUNK(rank=rank, source=source, wanted=chunk, found=found))
        return value

    def _write(self, rank: int, chunk: int, part: int, value: tuple[int, ...]) -> None:
        where = rank, chunk % self.slots, part
        self._touch(rank, where, chunk, writes=True)
        self.held[where] = chunk, value

    def _touch(self, rank: int, where: Part, chunk: int, writes: bool) -> None:
        clock, before = self.clocks[rank], self.accesses.setdefault(where, [])
        for other in before:
            if other.rank != rank and (writes or other.writes) and clock[other.rank] < other.event:
                raise ScheduleError(
                    texts.STREAM_RACE(rank=rank, other=other.rank, chunk=chunk, owner=where[0], slot=where[1])
                )
        before.append(Access(rank, clock[rank], tuple(clock), writes))


def verify_stream(calls: Sequence[tuple[Program, int]], size: int, slots: int = SLOTS) -> None:
    """Prove calls of ``size`` ranks, one after another: (program, chunks of the array) of each. Every rank must end
    with every slice of every chunk as the sum of all contributions, once each, in the order of ranks.

    Raises ScheduleError, with the ranks and the chunk.
    """
    walk, first = Walk(size, slots), 0
    ahead: list[tuple[str, int]] = []
    for program, chunks in calls:
        ahead += [(action, first + chunk) for action, chunk in actions_of(program, chunks)]
        first += chunks
    done = [0] * size
    while min(done) < len(ahead):
        ready = [rank for rank in range(size) if done[rank] < len(ahead) and walk.may(*ahead[done[rank]])]
        if not ready:
            raise ScheduleError(texts.STREAM_STUCK(action=ahead[min(done)][0], chunk=ahead[min(done)][1]))
        # One rank goes as far as it can before the next does: what no wait keeps apart meets.
        walk.do(ready[0], *ahead[done[ready[0]]])
        done[ready[0]] += 1
    whole = tuple(range(size))
    for rank in range(size):
        for chunk in range(first):
            for part in range(size):
                if walk.sums.get((rank, chunk, part)) != whole:
                    raise ScheduleError(
                        texts.STREAM_SUM(rank=rank, chunk=chunk, part=part, found=walk.sums.get((rank, chunk, part)))
                    )
