"""Proof that a streamed all-reduce needs no more waits than its program has, in whatever order its ranks go on.

Accesses of two ranks to one part of the window, of which one writes, must be ordered by a wait; and every rank must end
with the right sums. Orders of events are walked through for that, drawn by chance: which rank goes on, which of its
actions it takes, in which free slot. In a walk vector clocks hold what the waits alone order: so it finds the races of
all orders that differ from it by the speed of ranks alone.

No order ends in a deadlock if one comes to its end: an action that is possible stays so until it is taken, since waits
are for counters that only grow, and the others' counters say how many slots are free.

A vector clock holds, for each rank, how many of its events lie before an event. Source: Mattern 1989.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from ringtrain.errors import ScheduleError
from tests.collectives.stream_program import (
    COPY_ARRAYS,
    COPY_OTHERS,
    DONE,
    PUBLISH,
    PUBLISH_ARRAY,
    PUBLISH_OTHERS,
    SUM,
    SUM_OWN,
    Program,
    StreamAction,
)

ORDERS = 50
SLOT, NUMBER, CALL, ARRAY = "slot", "the number of slot", "the call", "the array"

Part = tuple[str, int, int, int]  # what it is, of which rank, where, and of which slice
Count = tuple[int, str, int]  # of a rank, its counter, with this chunk
Clock = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """An access of a rank to a part of the window: its own ``event``-th event, counted from 1."""

    rank: int
    event: int
    writes: bool


@dataclass(frozen=True, slots=True)
class StreamTask:
    """An action on a chunk that is next for a rank. awaited: the counts for which it waits; slot: where it publishes or
    -1"""

    rank: int
    action: StreamAction
    chunk: int
    awaited: Sequence[Count]
    slot: int = -1


class StreamCall(NamedTuple):
    program: Program
    chunks: int


class Rank:
    """Where a rank is. call: the number of its call; taken: on how many of the call's chunks it has taken each action;
    last: the counts that say that each slot is free again"""

    def __init__(self, size: int, slots: int):
        self.clock = [0] * size
        self.last: list[list[Count]] = [[] for _ in range(slots)]
        self.call, self.first = 0, 0
        self.taken: list[int] = []


class Walk:
    """One order of the events of ``size`` ranks with ``slots`` slots each."""

    def __init__(self, calls: Sequence[StreamCall], size: int, slots: int):
        self.calls, self.size, self.slots = calls, size, slots
        self.ranks = [Rank(size, slots) for _ in range(size)]
        self.counted: dict[Count, Clock] = {}
        self.accesses: dict[Part, list[Access]] = {}
        self.window: dict[Part, tuple[int, tuple[int, ...]]] = {}  # chunk or call, and contributions or number
        self.sums: dict[tuple[int, int, int], tuple[int, ...]] = {}  # by rank, chunk and slice
        for rank in range(size):
            self._begin(rank)

    def possible(self) -> Iterator[StreamTask]:
        """Yield what ranks may do next."""
        for rank in range(self.size):
            yield from (task for task in self._tasks(rank) if self.counted.keys() >= set(task.awaited))

    def _tasks(self, rank: int) -> Iterator[StreamTask]:
        state = self.ranks[rank]
        if state.call == len(self.calls):
            return
        program, chunks = self.calls[state.call]
        for action, taken, before in zip(program, state.taken, [chunks, *state.taken], strict=False):
            chunk = state.first + taken
            if taken < before and action.awaits:
                yield StreamTask(rank, action, chunk, [(other, action.awaits, chunk) for other in range(self.size)])
            elif taken < before and action.name == PUBLISH_ARRAY:
                yield StreamTask(rank, action, chunk, [])
            elif taken < before:
                yield from (StreamTask(rank, action, chunk, last, slot) for slot, last in enumerate(state.last))

    def take(self, task: StreamTask) -> None:
        """Take the action. Raises ScheduleError if the rank reads the wrong chunk, or unordered with a write."""
        state = self.ranks[task.rank]
        for count in task.awaited:
            state.clock[:] = map(max, state.clock, self.counted[count])
        state.clock[task.rank] += 1
        self._act(task)
        self.counted[task.rank, task.action.advances, task.chunk] = tuple(state.clock)
        program, chunks = self.calls[state.call]
        state.taken[program.index(task.action)] += 1
        if min(state.taken) == chunks:
            state.call, state.first = state.call + 1, state.first + chunks
            self._begin(task.rank)

    def _begin(self, rank: int) -> None:
        state = self.ranks[rank]
        state.clock[rank] += 1
        self._write(rank, (ARRAY, rank, 0, 0), state.call)  # between calls its rank does with it as it likes
        if state.call < len(self.calls):
            state.taken = [0] * len(self.calls[state.call].program)
            self._write(rank, (CALL, rank, state.call % 2, 0), state.call)

    def _act(self, task: StreamTask) -> None:
        rank, action, chunk = task.rank, task.action.name, task.chunk
        state, everyone = self.ranks[rank], range(self.size)
        others = [other for other in everyone if other != rank]
        if action in (PUBLISH, PUBLISH_OTHERS):
            state.last[task.slot] = [(reader, DONE, chunk) for reader in everyone]
            self._write(rank, (NUMBER, rank, chunk % self.slots, 0), chunk, (task.slot,))
            for part in everyone if action == PUBLISH else others:
                self._write(rank, (SLOT, rank, task.slot, part), chunk, (rank,))
        if action == COPY_ARRAYS:
            for other in others:
                self._read(rank, (CALL, other, state.call % 2, 0), state.call)
                self._read(rank, (ARRAY, other, 0, 0), state.call)
            self.sums |= {(rank, chunk, part): tuple(everyone) for part in everyone}
        if action in (SUM, SUM_OWN):
            for other in others:
                self._read(rank, (CALL, other, state.call % 2, 0), state.call)
            for part in everyone if action == SUM else [rank]:
                self.sums[rank, chunk, part] = self._sum(rank, chunk, part)
                if action == SUM_OWN:
                    self._write(rank, self._slot(rank, rank, chunk, part), chunk, self.sums[rank, chunk, part])
        if action == COPY_OTHERS:
            for other in others:
                self.sums[rank, chunk, other] = self._read(rank, self._slot(rank, other, chunk, other), chunk)

    def _sum(self, rank: int, chunk: int, part: int) -> tuple[int, ...]:
        """Return the contributions in the order of ranks, its own among them."""
        shares = (
            (rank,) if source == rank else self._read(rank, self._slot(rank, source, chunk, part), chunk)
            for source in range(self.size)
        )
        return tuple(each for share in shares for each in share)

    def _slot(self, rank: int, source: int, chunk: int, part: int) -> Part:
        """Return where a slice of a chunk of a rank is, by what this rank says."""
        (number,) = self._read(rank, (NUMBER, source, chunk % self.slots, 0), chunk)
        return SLOT, source, number, part

    def _read(self, rank: int, part: Part, wanted: int) -> tuple[int, ...]:
        self._touch(rank, part, wanted, writes=False)
        content, value = self.window.get(part, (None, ()))
        if content != wanted:
            what, owner, at, _ = part
            raise ScheduleError(f"rank {rank} reads {content} in {what} {at} of rank {owner}, and wants {wanted}")
        return value

    def _write(self, rank: int, part: Part, chunk: int, value: tuple[int, ...] = ()) -> None:
        self._touch(rank, part, chunk, writes=True)
        self.window[part] = chunk, value

    def _touch(self, rank: int, part: Part, chunk: int, writes: bool) -> None:
        clock, before = self.ranks[rank].clock, self.accesses.get(part, [])
        for other in before:
            if other.rank != rank and (writes or other.writes) and clock[other.rank] < other.event:
                what, owner, at, _ = part
                raise ScheduleError(
                    f"hazard: rank {rank} at chunk {chunk} and rank {other.rank} use {what} {at} of rank {owner}, and "
                    "nothing orders them"
                )
        # What comes after a write comes after all before it.
        self.accesses[part] = [*([] if writes else before), Access(rank, clock[rank], writes)]


def by_chance(number: int, size: int) -> Callable[[Sequence[StreamTask]], StreamTask]:
    """Return what picks the next action in the order of this number: ranks differ in speed, and in how far ahead they
    publish."""
    chance = random.Random(number)
    speeds, eagerness = [chance.random() ** 4 + 1e-9 for _ in range(size)], chance.random() ** 4 + 1e-9

    def pick(possible: Sequence[StreamTask]) -> StreamTask:
        weights = [speeds[task.rank] * (eagerness if task.slot >= 0 else 1.0) for task in possible]
        return chance.choices(possible, weights)[0]

    return pick


def verify_order(
    calls: Sequence[StreamCall], size: int, slots: int, pick: Callable[[Sequence[StreamTask]], StreamTask]
) -> None:
    """Prove one order of events: ``pick`` takes one of those that are possible. Raises as verify_stream does."""
    walk = Walk(calls, size, slots)
    while possible := list(walk.possible()):
        walk.take(pick(possible))
    if any(rank.call < len(calls) for rank in walk.ranks):
        chunks = [rank.first + min(rank.taken) for rank in walk.ranks]
        raise ScheduleError(f"no rank goes on: ranks are done with {chunks} chunks")
    chunks = sum(call.chunks for call in calls)
    for rank, chunk, part in product(range(size), range(chunks), range(size)):
        total = walk.sums.get((rank, chunk, part))
        if total != tuple(range(size)):
            raise ScheduleError(
                f"rank {rank} ends with {total} in slice {part} of chunk {chunk}; wanted every contribution once, in "
                "the order of ranks"
            )


def verify_stream(calls: Sequence[StreamCall], size: int, slots: int, orders: int = ORDERS) -> None:
    """Prove calls of ``size`` ranks, one after another. Every rank must end
    with every slice of every chunk as the sum of all contributions, once each, in the order of ranks.

    Raises ScheduleError, with the ranks and the chunk.
    """
    for number in range(orders):
        verify_order(calls, size, slots, by_chance(number, size))
