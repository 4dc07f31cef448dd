"""The messages of a whole schedule: each send with the receive that it matches. Used by the readers of all ranks:
verify, cost, draw, pipelining.
"""

from collections import defaultdict
from dataclasses import dataclass

from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError

Steps = list[tuple[Step, ...]]  # by rank


@dataclass(frozen=True, slots=True)
class MatchedMessage:
    """A message: ``send`` in step ``sent`` of rank ``source`` matches ``recv`` in step ``received`` of rank
    ``target``."""

    source: int
    target: int
    sent: int
    received: int
    send: Move
    recv: Move

    @property
    def chunks(self) -> int:
        return self.send.stop - self.send.start

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(rank, step) of the sender, and of the receiver; the same within a rank."""
        return (self.source, self.sent), (self.target, self.received)


def all_steps(schedule: Schedule) -> Steps:
    return [schedule.steps(rank) for rank in range(schedule.size)]


def messages(schedule: Schedule, steps: Steps) -> list[MatchedMessage]:
    """Return the messages by pair of ranks, in the order in which they match. Raises ScheduleError if an end is
    missing, or if two ends name different chunks."""
    sends, recvs = defaultdict(list), defaultdict(list)
    for rank, rank_steps in enumerate(steps):
        for number, step in enumerate(rank_steps):
            for move in step.sends:
                sends[rank, move.peer].append((number, move))
            for move in step.recvs:
                recvs[move.peer, rank].append((number, move))
    pairs = sorted({*sends, *recvs})
    return [message for pair in pairs for message in _matched(schedule, *pair, sends[pair], recvs[pair])]


def _matched(schedule: Schedule, source: int, target: int, out: list, into: list) -> list[MatchedMessage]:
    where = f"{schedule!r}, rank {source} to rank {target}"
    if len(out) != len(into):
        raise ScheduleError(f"{where}: {len(out)} sends, {len(into)} receives")
    for (k, send), (j, recv) in zip(out, into, strict=True):
        moved = recv.start - send.start  # to the same chunks, in the buffer or in scratch
        if send.stop + moved != recv.stop or moved % schedule.chunks:
            raise ScheduleError(
                f"{where}: chunks {span(send)} sent in step {k} arrive as chunks {span(recv)} in step {j}"
            )
    return [MatchedMessage(source, target, k, j, send, recv) for (k, send), (j, recv) in zip(out, into, strict=True)]


def span(move: Move) -> str:
    """Return the chunks of a move as text."""
    return f"{move.start}:{move.stop}"


def is_local(step: Step, rank: int) -> bool:
    return all(move.peer == rank for move in (*step.sends, *step.recvs))
