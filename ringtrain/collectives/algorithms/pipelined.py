"""Pipelining, as a function from schedules to schedules: the buffer is cut into pieces, and each piece goes through
the whole schedule, one round behind the piece before it.

Steps: k - 1 more than before, for k pieces. Bytes: the same. What it is good for: a rank that waits in one phase of a
schedule (for its parent in a tree, for the network in a hierarchy) is busy with the next piece meanwhile.

1.  The schedule is run on paper, every message taking one round
    (:func:`ringtrain.collectives.algorithms.timetable.rounds`).
2.  Piece j does the same j rounds later, on its own k-th of the buffer and of scratch.
3.  A rank's steps are its rounds in their order.

A chain of three ranks, pieces a b c::

    round     0      1      2      3
    0 -> 1    a      b      c
    1 -> 2           a      b      c

The result is a schedule like any other, and is proved like any other.
"""

from collections import defaultdict
from dataclasses import replace

from ringtrain.collectives import texts
from ringtrain.collectives.algorithms.timetable import TimedMessage, rounds, timed_steps
from ringtrain.collectives.matching import all_steps, messages
from ringtrain.collectives.schedule import Move, Schedule
from ringtrain.errors import UsageError


def pipelined(schedule: Schedule, pieces: int) -> Schedule:
    """``schedule``, in ``pieces`` pieces. It looks at the steps of all ranks, and so costs more to make than other
    schedules do.

    Raises UsageError for less than one piece; ScheduleError where the schedule deadlocks.
    """
    if pieces < 1:
        raise UsageError(texts.NO_PIECES(pieces=pieces))
    entries = _entries(schedule, pieces)
    owner = schedule.owner and (lambda chunk: schedule.owner(chunk % schedule.chunks))
    return replace(
        schedule,
        name=f"{schedule.name}*{pieces}",
        chunks=pieces * schedule.chunks,
        make=lambda rank: timed_steps(rank, entries[rank]),
        wire=lambda rank: pieces * schedule.wire(rank),
        owner=owner,
    )


def _entries(schedule: Schedule, pieces: int) -> dict[int, list[TimedMessage]]:
    """The messages of each rank, of all pieces, with their times."""
    steps = all_steps(schedule)
    met = messages(schedule, steps)
    taken, found = rounds(schedule, steps, met), defaultdict(list)
    for piece in range(pieces):
        for message, (round, depth) in zip(met, taken, strict=True):
            send, recv = (_moved(move, piece, pieces, schedule.chunks) for move in (message.send, message.recv))
            entry = TimedMessage((round + piece, depth), message.source, message.target, send, recv)
            for rank in {message.source, message.target}:
                found[rank].append(entry)
    return found


def _moved(move: Move, piece: int, pieces: int, chunks: int) -> Move:
    """The move in a piece: pieces follow one another in the buffer, and in each buffer's worth of scratch."""
    shift = (move.start // chunks * (pieces - 1) + piece) * chunks
    return replace(move, start=move.start + shift, stop=move.stop + shift)
