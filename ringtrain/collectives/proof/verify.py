"""Proof that a schedule reaches its goal (all-reduce, reduce-scatter or all-gather), by running it on symbols.

A value is an expression (:mod:`ringtrain.collectives.symbolic_sums`): a leaf is one rank's contribution, a node is a
sum of two expressions.

The proof covers, for every rank and chunk:

*no deadlock*     with every send synchronous and every rank finishing a step before it begins the next;
                  a rank that posts earlier only helps the others
*no hazard*       in no step does a written span overlap another span that is written or read
*exactly once*    the final value holds each rank's contribution once: multisets, since a set would accept a
                  doubled one; after a reduce-scatter on the chunk's owner; of an all-gather, the owner's value
                  and nothing else
*same rounding*   the final expression of a chunk is the same on all ranks that are to have it
*wanted order*    the final expression is the wanted one, if one is given: ranks may begin with sums
*in range*        spans are not empty, lie in the buffer or in scratch, and match the peer's
*within bounds*   no rank sends more chunks than the schedule states

With a wire that rounds, a message is an operator of its own: Q(x) arrives, and Q(Q(x)) is Q(x). A copy of a span onto
itself is Q too; other moves to oneself are not. The proof then sees that x + Q(y) differs from Q(x) + y.

All of this holds for moves to oneself too, but they are no messages: they send nothing, and a step without other moves
takes no round.

A violation raises ScheduleError, with the rank, step, peer or chunk.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from ringtrain.collectives.matching import MatchedMessage, Steps, all_steps, is_local, messages, span
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step
from ringtrain.collectives.symbolic_sums import Contributions, contributions
from ringtrain.errors import ScheduleError

EMPTY = -1  # of scratch, before anything has arrived


@dataclass(frozen=True, slots=True)
class Proof:
    """The figures of a proved schedule."""

    rounds: int  # steps that follow one another in time, if all messages take equally long
    sent: tuple[int, ...]  # chunks that each rank sends to others
    messages: tuple[int, ...]  # messages that each rank sends to others


def verify_schedule(schedule: Schedule, rounds: bool = False, brought: Contributions | None = None) -> Proof:
    """Prove the schedule and return its figures. Raises ScheduleError.

    rounds:  whether the wire rounds
    brought: the inputs of the ranks, and the wanted sum; None: each input of each rank is a contribution, and any
             sum of all of them will do
    """
    steps = all_steps(schedule)
    for rank, rank_steps in enumerate(steps):
        for number, step in enumerate(rank_steps):
            _check_step(schedule, rank, f"{schedule!r}, rank {rank}, step {number}", step)
    needs = _needs(steps, messages(schedule, steps))
    sent = tuple(
        sum(move.stop - move.start for move in _wired(rank, rank_steps)) for rank, rank_steps in enumerate(steps)
    )
    for rank, chunks in enumerate(sent):
        if chunks > schedule.max_chunks_sent(rank):
            raise ScheduleError(
                f"{schedule!r}, rank {rank} sends {chunks} chunks; stated: {schedule.max_chunks_sent(rank)}"
            )
    run = _Run(
        schedule, steps, needs, rounds, brought or contributions(list(map(schedule.inputs_of, range(schedule.size))))
    )
    count = run.to_the_end()
    run.check_result()
    return Proof(count, sent, tuple(len(_wired(rank, rank_steps)) for rank, rank_steps in enumerate(steps)))


def _wired(rank: int, rank_steps: tuple[Step, ...]) -> list[Move]:
    """Return the moves that the rank sends to others."""
    return [move for step in rank_steps for move in step.sends if move.peer != rank]


def _onto_itself(send: Move, recv: Move) -> bool:
    """Whether these ends of a move to oneself copy a span onto itself."""
    return (send.start, send.stop) == (recv.start, recv.stop) and not recv.add


def _read(rank: int, step: Step) -> list[Move]:
    """Return the spans that must not change during the step: all that are sent, except copies onto themselves."""
    within = ([move for move in moves if move.peer == rank] for moves in (step.sends, step.recvs))
    copied = [send for send, recv in zip(*within, strict=False) if _onto_itself(send, recv)]
    return [send for send in step.sends if not any(send is other for other in copied)]


def _check_step(schedule: Schedule, rank: int, where: str, step: Step) -> None:
    for move in (*step.sends, *step.recvs):
        if not 0 <= move.peer < schedule.size:
            raise ScheduleError(f"{where}: peer {move.peer} of {schedule.size} ranks")
        if not 0 <= move.start < move.stop:
            raise ScheduleError(f"{where}: span {span(move)} is empty or negative")
        if move.start // schedule.chunks != (move.stop - 1) // schedule.chunks:
            raise ScheduleError(f"{where}: span {span(move)} leaves the buffer of {schedule.chunks} chunks")
    written: dict[int, Move] = {}
    for move in step.recvs:
        for chunk in range(move.start, move.stop):
            if chunk in written:
                other = written[chunk].peer
                raise ScheduleError(
                    f"{where}: hazard: chunk {chunk} is received from rank {other} and rank {move.peer} at once"
                )
            written[chunk] = move
    for move in _read(rank, step):
        for chunk in range(move.start, move.stop):
            if chunk in written:
                other = written[chunk].peer
                raise ScheduleError(
                    f"{where}: hazard: chunk {chunk} is sent to rank {move.peer} while rank {other} writes it"
                )


def _needs(steps: Steps, met: list[MatchedMessage]) -> list[list[set[tuple[int, int]]]]:
    """Return, for every step of every rank, the (peer, step) pairs that must have begun before it can end."""
    needs: list[list[set[tuple[int, int]]]] = [[set() for _ in rank_steps] for rank_steps in steps]
    for message in met:
        needs[message.source][message.sent].add((message.target, message.received))
        needs[message.target][message.received].add((message.source, message.sent))
    return needs


class _Run:
    """Simulation of all ranks at once, each as far as it can go."""

    def __init__(self, schedule: Schedule, steps, needs, rounds: bool, brought: Contributions):
        self.schedule, self.steps, self.needs, self.rounds = schedule, steps, needs, rounds
        self.brought, self.sums = brought, brought.sums
        self.values = [brought.values(rank, schedule.chunks) for rank in range(schedule.size)]
        self.at = [0] * schedule.size  # the step that each rank has posted; earlier steps have ended
        self.wires: dict[tuple[int, int], deque] = defaultdict(deque)

    def to_the_end(self) -> int:
        """Return the number of rounds. In each round every step ends whose partners have begun."""
        for rank in range(self.schedule.size):
            self._begin(rank)
        rounds = 0
        while any(self._left(rank) for rank in range(self.schedule.size)):
            ending = [rank for rank in range(self.schedule.size) if self._left(rank) and not self._waits_for(rank)]
            if not ending:
                raise ScheduleError(self._deadlock())
            for rank in ending:
                self._receive(rank)
            for rank in ending:
                self.at[rank] += 1
                self._begin(rank)
            rounds += 1
        return rounds

    def _left(self, rank: int) -> bool:
        return self.at[rank] < len(self.steps[rank])

    def _waits_for(self, rank: int) -> list[tuple[int, int]]:
        return [(peer, step) for peer, step in self.needs[rank][self.at[rank]] if self.at[peer] < step]

    def _begin(self, rank: int) -> None:
        """Advance to the next step that needs others, and post its sends."""
        while self._left(rank):
            self._post(rank)
            if self._waits_for(rank) or not is_local(self.steps[rank][self.at[rank]], rank):
                return
            self._receive(rank)
            self.at[rank] += 1

    def _post(self, rank: int) -> None:
        values = self.values[rank]
        for move in self.steps[rank][self.at[rank]].sends:
            load = [values.get(chunk, EMPTY) for chunk in range(move.start, move.stop)]
            if EMPTY in load:
                raise ScheduleError(f"{self._where(rank)}: sends scratch {span(move)} before data arrived there")
            self.wires[rank, move.peer].append((move, load))

    def _receive(self, rank: int) -> None:
        values = self.values[rank]
        for move in self.steps[rank][self.at[rank]].recvs:
            send, load = self.wires[move.peer, rank].popleft()
            if self.rounds and (move.peer != rank or _onto_itself(send, move)):
                load = [self.sums.round(value) for value in load]
            for chunk, value in zip(range(move.start, move.stop), load, strict=True):
                if move.add and chunk not in values:
                    raise ScheduleError(f"{self._where(rank)}: adds into scratch {chunk}, which is empty")
                values[chunk] = self.sums.add(values[chunk], value) if move.add else value

    def _where(self, rank: int) -> str:
        return f"{self.schedule!r}, rank {rank}, step {self.at[rank]}"

    def _deadlock(self) -> str:
        stuck = [rank for rank in range(self.schedule.size) if self._left(rank)]
        waits = "; ".join(
            f"rank {rank} in step {self.at[rank]} waits for "
            + ", ".join(f"step {step} of rank {peer}" for peer, step in sorted(self._waits_for(rank)))
            for rank in stuck[:4]
        )
        more = f"; and {len(stuck) - 4} more" if len(stuck) > 4 else ""
        return f"{self.schedule!r}: deadlock: {waits}" + more

    def check_result(self) -> None:
        goal, owner = self.schedule.goal, self.schedule.owner
        for chunk in range(self.schedule.chunks):
            holders = [owner(chunk)] if goal == REDUCE_SCATTER else range(self.schedule.size)
            for rank in holders:
                value, where = self.values[rank][chunk], f"{self.schedule!r}, rank {rank}, chunk {chunk}"
                if goal == ALL_GATHER:
                    self._check_copy(where, value, chunk, owner(chunk))
                else:
                    done = "added or rounded" if self.rounds else "added"
                    self.brought.check(where, value, self.values[holders[0]][chunk], holders[0], done)

    def _check_copy(self, where: str, value: int, chunk: int, owner: int) -> None:
        if self.sums.leaves[value] != Counter([owner]):
            ranks = " + ".join(f"rank {source}'s" for source in sorted(self.sums.leaves[value].elements()))
            raise ScheduleError(f"{where} ends as {ranks}; wanted rank {owner}'s")
        if value != self.values[owner][chunk]:
            raise ScheduleError(f"{where} ends rounded, and not rounded on its owner, rank {owner}")
