"""Conversion from messages with times to steps: the way to write schedules in which a rank does several things at once.

Both ends of a message have one time, and a rank's steps are its times in their order. The rank with the earliest time
that is left can always continue, so no timetable deadlocks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ringtrain.collectives.matching import MatchedMessage, Steps, is_local
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError

Time = tuple[int, int]  # round; and, of arithmetic within a rank, which one after that round's messages, from 1
End = tuple[int, int]  # rank and step


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A message that rank ``source`` sends and rank ``target`` receives at ``time``."""

    time: Time
    source: int
    target: int
    send: Move
    recv: Move


def timed_steps(rank: int, entries: Iterable[TimedMessage]) -> Iterator[Step]:
    """Yield the steps of ``rank``. ``entries`` are the messages of this rank; messages of one pair and one time have
    the same order on both ranks."""
    for _, group in groupby(sorted(entries, key=lambda entry: entry.time), key=lambda entry: entry.time):
        together = list(group)
        yield Step(
            tuple(entry.send for entry in together if entry.source == rank),
            tuple(entry.recv for entry in together if entry.target == rank),
        )


def rounds(schedule: Schedule, steps: Steps, met: list[MatchedMessage]) -> list[Time]:
    """Return the time of each message, if each takes one round and arithmetic within a rank takes none. A message
    travels when both of its ranks have begun its step; a rank continues when the last message of its step has
    travelled.

    Raises ScheduleError if the schedule deadlocks.
    """
    return _Clock(steps, met).run(schedule)


class _Clock:
    """Simulation of all ranks, each as far as it can go."""

    def __init__(self, steps: Steps, met: list[MatchedMessage]):
        self.steps, self.met = steps, met
        self.times: dict[int, Time] = {}  # by number of the message
        self.begun: dict[End, Time] = {}
        self.ended: set[End] = set()
        self.touching: dict[End, set[int]] = defaultdict(set)
        for number, message in enumerate(met):
            for end in message.ends:
                self.touching[end].add(number)

    def run(self, schedule: Schedule) -> list[Time]:
        ready = [((rank, 0), (-1, 0)) for rank, rank_steps in enumerate(self.steps) if rank_steps]
        for end, last in ready:
            self._begin(end, last)
            ready.extend(self._go_on(end))
        left = len(self.met) - len(self.times)
        if left:
            raise ScheduleError(f"{schedule!r} deadlocks: {left} of {len(self.met)} messages never travel")
        return [self.times[number] for number in range(len(self.met))]

    def _begin(self, end: End, last: Time) -> None:
        rank, step = end
        local = is_local(self.steps[rank][step], rank)
        self.begun[end] = (last[0], last[1] + 1) if local else (last[0] + 1, 0)
        for number in self.touching[end]:
            ends = self.met[number].ends
            if all(end in self.begun for end in ends):
                self.times[number] = max(self.begun[end] for end in ends)

    def _go_on(self, begun: End) -> Iterator[tuple[End, Time]]:
        """Yield the steps that may begin now that this one has, each with the last time of the step before it."""
        for end in sorted({begun}.union(*(self.met[number].ends for number in self.touching[begun]))):
            messages = self.touching[end]
            if end not in self.ended and all(number in self.times for number in messages):
                self.ended.add(end)
                rank, step = end
                if step + 1 < len(self.steps[rank]):
                    yield (rank, step + 1), max((self.times[number] for number in messages), default=self.begun[end])
