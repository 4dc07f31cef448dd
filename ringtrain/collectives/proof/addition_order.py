"""Proof that a schedule adds in the order of the canonical tree.

The leaves of the proof are shards. A rank begins with the result of its folds
(:mod:`ringtrain.collectives.algorithms.shards`) on its own shards, which run on symbols too; the schedule then runs on
these; and each rank must end with the tree, as its definition has it. So the proof covers both together, from the
shards to the sum.
"""

from collections.abc import Sequence

from ringtrain.collectives.algorithms.shards import add_up, folds, partials, shard_range
from ringtrain.collectives.execution.node_program import NodeProgram
from ringtrain.collectives.proof.shared_memory_proof import verify_node_program
from ringtrain.collectives.proof.verify import Proof, verify_schedule
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.symbolic_sums import Contributions, SymbolicSums
from ringtrain.errors import ScheduleError


def prove(schedule: Schedule, shards: int) -> Proof:
    """Return the proof that the schedule all-reduces, and adds ``shards`` shards as the tree does. Raises
    ScheduleError."""
    return verify_schedule(
        schedule, brought=_brought(repr(schedule), [*map(schedule.inputs_of, range(schedule.size))], shards)
    )


def prove_node_program(program: NodeProgram, shards: int) -> None:
    """Prove the same of a program of a node. Raises ScheduleError."""
    verify_node_program(program, _brought(program.name, program.inputs_of, shards))


def _brought(name: str, brings: Sequence[int], shards: int) -> Contributions:
    """Return the inputs of the ranks, and the tree. Raises ScheduleError if a rank has more inputs than the schedule
    takes."""
    sums, size = SymbolicSums(shards), len(brings)
    for rank, count in enumerate(brings):
        nodes = partials(rank, size, shards)
        if count != len(nodes):
            left, arrays = ", ".join(f"{start}:{stop}" for start, stop in nodes), "array" if count == 1 else "arrays"
            raise ScheduleError(
                f"{name} takes {count} {arrays} of rank {rank}, which has {len(nodes)}: sums of shards {left} of "
                f"{shards}"
            )
    inputs = [_folded(sums, *shard_range(rank, size, shards), shards) for rank in range(size)]
    total = add_up(range(shards), sums.add)
    return Contributions(sums, inputs, lambda shard: f"the gradient of shard {shard}", total)


def _folded(sums: SymbolicSums, start: int, stop: int, shards: int) -> list[int]:
    """Return the result of the folds of these shards in the buffer, and in further inputs."""
    slots: dict[int | None, int] = {}
    folded, left = folds(start, stop, shards)
    for value, fold in enumerate(folded, start):
        for slot in fold.adds:
            value = sums.add(slots.pop(slot), value)
        slots[fold.keep] = value
    return [slots[None], *(slots[slot] for slot in range(len(left) - 1))]
