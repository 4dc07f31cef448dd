"""Proof that ranks in shared memory never touch one chunk at the same time, and that each ends with every contribution
once."""

from itertools import product

from ringtrain.collectives.execution.node_program import NodeProgram
from ringtrain.collectives.symbolic_sums import Contributions, contributions
from ringtrain.errors import ScheduleError


def verify_node_program(program: NodeProgram, brought: Contributions | None = None) -> None:
    """Prove that no two ranks touch one chunk between the waits, and that every rank ends with the sum of every chunk:
    each contribution once, added in one order. ``brought``: as in
    :func:`ringtrain.collectives.proof.verify.verify_schedule`.

    Raises ScheduleError, with rank and chunk.
    """
    _check_touching(program)
    brought = brought or contributions(program.inputs_of)
    sums = brought.sums
    values = {
        (rank, chunk): value
        for rank in range(program.size)
        for chunk, value in brought.values(rank, program.chunks).items()
    }
    for tasks in program.tasks:  # no two ranks touch one chunk: any order of the ranks gives the same result
        for target, source, add in tasks:
            values[target] = sums.add(values[target], values[source]) if add else values[source]
    for rank, chunk in product(range(program.size), range(program.chunks)):
        brought.check(f"{program.name}, rank {rank}, chunk {chunk}", values[rank, chunk], values[0, chunk], 0)


def _check_touching(program: NodeProgram) -> None:
    """Check that each rank touches only the chunk of its own number, in any buffer or input."""
    for rank, tasks in enumerate(program.tasks):
        for owner, chunk in {place for task in tasks for place in (task.target, task.source)}:
            if not 0 <= chunk < program.inputs_of[owner] * program.chunks:
                raise ScheduleError(
                    f"{program.name}: rank {rank} touches chunk {chunk} of rank {owner}, whose input is "
                    f"{program.inputs_of[owner]} × {program.chunks} chunks"
                )
            if chunk % program.chunks != rank:
                raise ScheduleError(
                    f"{program.name}: hazard: rank {rank} touches chunk {chunk} of rank {owner}'s buffer, which only "
                    f"rank {chunk % program.chunks} may touch between the waits"
                )
