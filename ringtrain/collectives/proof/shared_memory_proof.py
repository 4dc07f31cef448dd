"""Proof that what ranks do in shared memory is ordered by their waits wherever two of them touch one chunk and one
writes, and that each ends with every contribution once.

Between two waits the speed of a rank then changes nothing. Source: vector clocks, Mattern 1989.
"""

from collections import defaultdict
from itertools import combinations, product
from typing import NamedTuple

from ringtrain.collectives.execution.node_program import BufferChunk, ChunkOperation, NodeProgram
from ringtrain.collectives.symbolic_sums import Contributions, contributions
from ringtrain.errors import ScheduleError


class _Access(NamedTuple):
    """number: of the phase, from 1; 0 before them"""

    rank: int
    number: int
    writes: bool


def verify_node_program(program: NodeProgram, brought: Contributions | None = None) -> None:
    """Prove that waits order what ranks touch, before the program and after it too, and that every rank ends with the
    sum of every chunk: each contribution once, added in one order. ``brought``: as in
    :func:`ringtrain.collectives.proof.verify.verify_schedule`.

    Raises ScheduleError, with rank and chunk.
    """
    _check_order(program)
    brought = brought or contributions(program.inputs_of)
    sums = brought.sums
    values = {
        (rank, chunk): value
        for rank in range(program.size)
        for chunk, value in brought.values(rank, program.chunks).items()
    }
    for phase, rank in product(range(len(program.phases)), range(program.size)):  # any order that waits allow
        for target, source, add in _operations(program, phase, rank):
            values[target] = sums.add(values[target], values[source]) if add else values[source]
    for rank, chunk in product(range(program.size), range(program.chunks)):
        brought.check(f"{program.name}, rank {rank}, chunk {chunk}", values[rank, chunk], values[0, chunk], 0)


def _operations(program: NodeProgram, phase: int, rank: int) -> list[ChunkOperation]:
    """Return the operations of a rank in a phase, each on one chunk."""
    _, tasks, width = program.phases[phase]
    shifts = product(tasks[rank], range(width))
    return [ChunkOperation((a, chunk + i), (b, other + i), add) for ((a, chunk), (b, other), add), i in shifts]


def _check_order(program: NodeProgram) -> None:
    """Check that a wait lies between any two ranks' accesses to a chunk of which one writes. Before the first phase and
    after the last each rank does with its own memory as it likes."""
    clocks, ranks = _clocks(program), range(program.size)
    touched: dict[BufferChunk, set[_Access]] = defaultdict(set)
    for rank in ranks:
        for chunk in range(program.inputs_of[rank] * program.chunks):
            touched[rank, chunk] |= {_Access(rank, number, True) for number in (0, len(program.phases))}
    memory = set(touched)
    for phase, rank in product(range(len(program.phases)), ranks):
        for target, source, _ in _operations(program, phase, rank):
            if outside := {target, source} - memory:
                (owner, chunk), *_ = outside
                raise ScheduleError(
                    f"{program.name}: rank {rank} touches chunk {chunk} of rank {owner}, whose input is "
                    f"{program.inputs_of[owner]} × {program.chunks} chunks"
                )
            touched[target].add(_Access(rank, phase + 1, True))
            touched[source].add(_Access(rank, phase + 1, False))
    for (owner, chunk), accesses in touched.items():
        for a, b in combinations(sorted(accesses), 2):
            ordered = clocks[b.number][b.rank][a.rank] > a.number or clocks[a.number][a.rank][b.rank] > b.number
            if a.rank != b.rank and (a.writes or b.writes) and not ordered:
                raise ScheduleError(
                    f"{program.name}: hazard: ranks {a.rank} and {b.rank} touch chunk {chunk} of rank {owner}'s "
                    "buffer, and no wait orders them"
                )


def _clocks(program: NodeProgram) -> list[list[list[int]]]:
    """Return, by phase and rank, how many phases of each rank are over before that; the time before the first phase
    is one of them."""
    ranks = range(program.size)
    clocks = [[[0] * program.size for _ in ranks]]
    for number, phase in enumerate(program.phases, 1):
        last = clocks[-1]
        clocks.append(
            [
                [max([number * (other in awaited), *(last[each][other] for each in awaited)]) for other in ranks]
                for awaited in phase.awaited
            ]
        )
    return clocks
