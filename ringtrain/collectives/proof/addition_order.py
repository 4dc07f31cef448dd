"""Which schedules add in the order of the canonical tree: those of which that is proved, at so many ranks.

The leaves of the proof are shards. A rank begins with what its folds (:mod:`ringtrain.collectives.algorithms.shards`)
make of its own, which is run on symbols too; the schedule is run on that; and what every rank ends with is to be the
tree, as its definition has it. So it is proved of the two together, and of nothing else that could be between a shard
and a sum.
"""

from collections.abc import Sequence

from ringtrain.collectives import texts
from ringtrain.collectives.algorithms.shards import add_up, folds, partials, share
from ringtrain.collectives.catalogue import FLAT, make_schedule
from ringtrain.collectives.execution.fused_plan import TwoShotPlan
from ringtrain.collectives.proof.shared_memory_proof import verify_fused
from ringtrain.collectives.proof.verify import Proof, verify
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.symbolic_sums import Contributions, SymbolicSums
from ringtrain.errors import ScheduleError


def prove(schedule: Schedule, shards: int) -> Proof:
    """The proof that it all-reduces, and adds so many shards as the tree does. Raises ScheduleError."""
    return verify(schedule, brought=_brought(repr(schedule), [*map(schedule.inputs_of, range(schedule.size))], shards))


def prove_fused(fused: TwoShotPlan, shards: int) -> None:
    """The same of a plan in shared memory."""
    verify_fused(fused, _brought(fused.name, fused.inputs_of, shards))


def qualifying(size: int, shards: int) -> list[str]:
    """The names of the schedules that can be proved to add so, on one node."""
    return [name for name in FLAT if qualifies(make_schedule(name, size), shards)]


def qualifies(schedule: Schedule, shards: int) -> bool:
    try:
        prove(schedule, shards)
    except ScheduleError:
        return False
    return True


def _brought(name: str, brings: Sequence[int], shards: int) -> Contributions:
    """What ranks begin with, and the tree. Raises ScheduleError where they have more than the schedule takes."""
    sums, size = SymbolicSums(shards), len(brings)
    for rank, count in enumerate(brings):
        own = partials(rank, size, shards)
        if count != len(own):
            left, arrays = ", ".join(f"{start}:{stop}" for start, stop in own), "array" if count == 1 else "arrays"
            raise ScheduleError(
                texts.WRONG_LANES(
                    name=name, count=count, arrays=arrays, rank=rank, held=len(own), ranges=left, shards=shards
                )
            )
    lanes = [_folded(sums, *share(rank, size, shards), shards) for rank in range(size)]
    total = add_up(range(shards), sums.add)
    return Contributions(sums, lanes, lambda shard: texts.SHARD_GRADIENT(shard=shard), total)


def _folded(sums: SymbolicSums, start: int, stop: int, shards: int) -> list[int]:
    """What the folds of these shards leave in the buffer, and in further lanes."""
    held, made = {}, folds(start, stop, shards)[0]
    for value, fold in enumerate(made, start):
        for slot in fold.adds:
            value = sums.add(held.pop(slot), value)
        held[fold.keep] = value
    return [held.pop(None), *(held[slot] for slot in sorted(held))]
