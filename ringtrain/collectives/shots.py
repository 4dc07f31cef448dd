"""The one-shot all-reduce in memory that ranks share: every rank adds everything itself.

Steps: one wait, for any p. Bytes: each rank copies n into memory that its neighbours read, and reads p · n. Half the
waits that :mod:`ringtrain.collectives.fused` has, and p/2 times as many bytes: for buffers that are all latency.

Every rank has *mail*: a place in shared memory, of two slots. Round k uses slot k mod 2 of everybody's.

1.  Every rank puts its contribution into the slot of its own mail, and says so.
2.  Every rank waits until all have said so.
3.  Every rank adds the slots of all mails, in rank order, into its own buffer.

Nobody waits for the end of others' additions. Whoever puts the contribution of round k + 2 where that of round k was
has seen all others come to round k + 1, and they had then ended the additions of round k: two slots suffice, and one
does not. :func:`verify_shots` proves that, and that what is added is each contribution of that very round, once, in one
order on all ranks, so that all hold the same bits.

Source: TensorRT-LLM's custom all-reduce (NVIDIA 2023) has a one-shot and a two-shot kernel, by size; the slots in turn,
and waiting on the host, are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringtrain.collectives.expressions import Sums
from ringtrain.errors import ScheduleError

PUT, SAY, WAIT, ADD = "put", "say", "wait", "add"
SLOTS = 2


@dataclass(frozen=True, slots=True)
class Act:
    """put: the own contribution into ``slot`` of ``owner``'s mail; add: what lies there to the sum; say: one's count
    of rounds goes up; wait: until everybody's count is no less than one's own."""

    kind: str
    owner: int = -1
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Shots:
    """``phases[rank][phase]``: what the rank does in a round, where phase = round mod the number of phases."""

    name: str
    size: int
    phases: tuple[tuple[tuple[Act, ...], ...], ...]


def one_shot(size: int) -> Shots:
    """For ``size`` ranks that share memory."""
    return Shots(
        "one-shot", size, tuple(tuple(_round(rank, size, slot) for slot in range(SLOTS)) for rank in range(size))
    )


def _round(rank: int, size: int, slot: int) -> tuple[Act, ...]:
    return (Act(PUT, rank, slot), Act(SAY), Act(WAIT), *(Act(ADD, owner, slot) for owner in range(size)))


# ── proof ─────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Done:
    """One act of a run of several rounds. said: how often its rank had said so before; seen: what its last wait before
    it was for; at: its place among all acts of its rank."""

    rank: int
    round: int
    act: Act
    said: int
    seen: int
    at: int

    def before(self, other: "_Done") -> bool:
        """Whether it has ended when the other begins, however fast or slow ranks are."""
        if self.rank == other.rank:
            return self.at < other.at
        return other.seen > self.said  # the other has waited for something that was said after this

    def __str__(self) -> str:
        verb = "puts into" if self.act.kind == PUT else "adds from"
        return f"rank {self.rank} {verb} slot {self.act.slot} of rank {self.act.owner} in round {self.round}"


def verify_shots(shots: Shots, rounds: int | None = None) -> None:
    """Proves that no slot is written while it may be read or written by another, and that every round ends on every
    rank with the sum of that round's contributions, each once, in one order. ``rounds``: so many are looked at, three
    times the phases unless told: then all that can meet has met. Raises ScheduleError, with rank and round."""
    phases = {len(own) for own in shots.phases}
    rounds = rounds or 3 * max(phases)
    every = [list(_unrolled(shots, rank, rounds)) for rank in range(shots.size)]
    said = [sum(done.act.kind == SAY for done in own) for own in every]
    for rank, count in enumerate(said):
        if count != said[0]:
            raise ScheduleError(
                f"{shots.name}, rank {rank} says {count} times that it has come, in {rounds} rounds, and rank 0 "
                f"{said[0]} times: one would wait for ever"
            )
    touching = [done for own in every for done in own if done.act.kind in (PUT, ADD)]
    puts = [done for done in touching if done.act.kind == PUT]
    for put in puts:
        _check_alone(shots, put, touching)
    _check_sums(shots, rounds, puts, touching)


def _unrolled(shots: Shots, rank: int, rounds: int) -> Iterator[_Done]:
    said = seen = at = 0
    own = shots.phases[rank]
    for number in range(rounds):
        for act in own[number % len(own)]:
            yield _Done(rank, number, act, said, seen, at)
            said += act.kind == SAY
            seen = said if act.kind == WAIT else seen
            at += 1


def _place(done: _Done) -> tuple[int, int]:
    return done.act.owner, done.act.slot


def _check_alone(shots: Shots, put: _Done, touching: list[_Done]) -> None:
    for other in touching:
        if other is not put and _place(other) == _place(put) and not (put.before(other) or other.before(put)):
            raise ScheduleError(f"{shots.name}: hazard: {put} while {other}")


def _check_sums(shots: Shots, rounds: int, puts: list[_Done], touching: list[_Done]) -> None:
    """Nothing is written while it is read: what is read is what was written last before it."""
    sums, ends = Sums(shots.size), {}
    for done in touching:
        if done.act.kind == ADD:
            source, key = _written(shots, done, puts), (done.round, done.rank)
            ends[key] = sums.add(ends[key], source) if key in ends else source
    for number in range(rounds):
        for rank in range(shots.size):
            _check_end(shots, sums, ends, number, rank)


def _written(shots: Shots, add: _Done, puts: list[_Done]) -> int:
    """The rank whose contribution is read."""
    last = None
    for put in puts:
        if _place(put) == _place(add) and put.before(add) and (last is None or last.before(put)):
            last = put
    if last is None:
        raise ScheduleError(f"{shots.name}: {add}, and nobody has put anything there")
    if last.round != add.round:
        raise ScheduleError(f"{shots.name}: {add}, which holds rank {last.rank}'s contribution of round {last.round}")
    return last.rank


def _check_end(shots: Shots, sums: Sums, ends: dict, number: int, rank: int) -> None:
    value = ends.get((number, rank))
    where = f"{shots.name}, round {number}, rank {rank}"
    for source in range(shots.size):
        times = 0 if value is None else sums.leaves[value][source]
        if times != 1:
            raise ScheduleError(f"{where} ends with rank {source}'s contribution {times} times")
    if value != ends[number, 0]:
        raise ScheduleError(f"{where} adds in another order than rank 0")
