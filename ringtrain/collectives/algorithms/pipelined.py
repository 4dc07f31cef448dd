"""Pipelining, as a function from schedules to schedules: the buffer is cut into segments, and each segment goes through
the whole schedule, one round behind the segment before it.

Steps: k - 1 more than before, for k segments. Bytes: the same. Purpose: a rank that waits in one phase of a schedule
(for its parent in a tree, for the network in a hierarchy) works on the next segment meanwhile.

1.  The schedule is simulated, every message taking one round
    (:func:`ringtrain.collectives.algorithms.timetable.rounds`).
2.  Segment j does the same j rounds later, on its own k-th of the buffer and of scratch.
3.  A rank's steps are its rounds in their order.

A chain of three ranks, segments a b c::

    round     0      1      2      3
    0 -> 1    a      b      c
    1 -> 2           a      b      c

The result is a schedule like any other, and is proved like any other.
"""

from collections import defaultdict
from dataclasses import replace

from ringtrain.collectives.algorithms.timetable import TimedMessage, rounds, timed_steps
from ringtrain.collectives.matching import all_steps, messages
from ringtrain.collectives.schedule import Move, Schedule
from ringtrain.errors import UsageError


def pipelined(schedule: Schedule, segments: int) -> Schedule:
    """Return ``schedule`` pipelined in ``segments`` segments. It reads the steps of all ranks, so it costs more to make
    than other schedules.

    Raises UsageError for less than one segment; ScheduleError if the schedule deadlocks.
    """
    if segments < 1:
        raise UsageError(f"a schedule cannot be pipelined in {segments} segments: at least 1 is needed")
    entries = _entries(schedule, segments)
    return replace(
        schedule,
        name=f"{schedule.name}*{segments}",
        chunks=segments * schedule.chunks,
        make=lambda rank: timed_steps(rank, entries[rank]),
        max_chunks_sent=lambda rank: segments * schedule.max_chunks_sent(rank),
        owner=lambda chunk: schedule.owner(chunk % schedule.chunks),
    )


def _entries(schedule: Schedule, segments: int) -> dict[int, list[TimedMessage]]:
    """Return the messages of each rank, of all segments, with their times."""
    steps = all_steps(schedule)
    met = messages(schedule, steps)
    taken, entries = rounds(schedule, steps, met), defaultdict(list)
    for segment in range(segments):
        for message, (round, depth) in zip(met, taken, strict=True):
            send, recv = (_moved(move, segment, segments, schedule.chunks) for move in (message.send, message.recv))
            entry = TimedMessage((round + segment, depth), message.source, message.target, send, recv)
            for rank in {message.source, message.target}:
                entries[rank].append(entry)
    return entries


def _moved(move: Move, segment: int, segments: int, chunks: int) -> Move:
    """Return the move in one segment: segments follow one another in the buffer, and in each buffer-sized area of
    scratch."""
    shift = (move.start // chunks * (segments - 1) + segment) * chunks
    return replace(move, start=move.start + shift, stop=move.stop + shift)
