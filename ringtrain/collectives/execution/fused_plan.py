"""All-reduce in memory that ranks share: the schedule's messages are gone, and what they were for is done in place.

A reduce-scatter that sends raw contributions into their owner's scratch, where the owner adds them, and an all-gather
that copies each owner's chunk to everybody: :mod:`ringtrain.collectives.algorithms.sliced` is of this kind. Where ranks
can read and write one another's buffers, the owner takes a contribution from where it lies, and writes the sum to where
it is wanted. Nothing is sent and nothing is staged. What is left of the schedule are its additions, in their order, and
its copies:

1.  Every rank waits until all have come: their buffers are final.
2.  Each owner adds the contributions to its chunk, in its peers' buffers, and writes the sum into them all.
3.  Every rank waits until all have done so.

Between the two waits a rank touches its own chunk alone, in all buffers, and nobody else touches that. Which rank is
slow or fast then changes nothing: :func:`verify_fused` proves both that, and that every rank ends with the same sum of
every contribution, once each. The order of additions is the schedule's, and so are the bits of the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ringtrain.collectives import texts
from ringtrain.collectives.algorithms import sliced
from ringtrain.collectives.algorithms.canonical import NAME, reduce_scatter
from ringtrain.collectives.matching import MatchedMessage, Steps, all_steps, is_local, messages
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError

# Whose buffer, and which chunk of it: counted on, from the buffer's end, through what the rank brings besides.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChunkOperation:
    """Add the chunk at ``source`` into the one at ``target``, or overwrite that by it."""

    target: Place
    source: Place
    add: bool


@dataclass(frozen=True, slots=True)
class TwoShotPlan:
    """``tasks[rank]``: what the rank does between the two waits, in this order: all of it to chunk ``rank``.
    ``brings[rank]``: how many arrays it has to be added (:meth:`ringtrain.collectives.schedule.Schedule.inputs_of`)."""

    name: str
    size: int
    chunks: int
    tasks: tuple[tuple[ChunkOperation, ...], ...]
    inputs_of: tuple[int, ...]


def fuse(name: str, scatter: Schedule, gather: Schedule) -> TwoShotPlan:
    """The two halves of an all-reduce, in shared memory. Raises ScheduleError where they are of another kind."""
    steps = all_steps(scatter)
    tasks = [[] for _ in range(scatter.size)]
    for rank, home in enumerate(_homes(scatter, steps)):
        tasks[rank] += _additions(steps[rank], rank, home)
    for message in messages(gather, all_steps(gather)):
        _check(gather, message)
        tasks[message.source] += _copies(message)
    return TwoShotPlan(name, scatter.size, scatter.chunks, tuple(map(tuple, tasks)), _brings(scatter))


def _brings(scatter: Schedule) -> tuple[int, ...]:
    return tuple(map(scatter.inputs_of, range(scatter.size)))


def _homes(scatter: Schedule, steps: Steps) -> list[dict[int, Place]]:
    """For each rank, where that lies which the schedule has in one of its chunks before it adds: its own
    contributions in its lanes, others in scratch; and now each in the buffer that it came from."""
    homes = [
        {chunk: (rank, chunk) for chunk in range(lanes * scatter.chunks)} for rank, lanes in enumerate(_brings(scatter))
    ]
    for message in messages(scatter, steps):
        if message.source != message.target:
            _check(scatter, message)
            for source, target in _pairs(message.send, message.recv):
                homes[message.target][target] = (message.source, source)
    return homes


def _additions(steps: tuple[Step, ...], rank: int, home: dict[int, Place]) -> Iterator[ChunkOperation]:
    for step in steps:
        if is_local(step, rank):
            for send, recv in zip(step.sends, step.recvs, strict=True):
                for source, target in _pairs(send, recv):
                    yield ChunkOperation(home[target], home[source], recv.add)


def _copies(message: MatchedMessage) -> Iterator[ChunkOperation]:
    for source, target in _pairs(message.send, message.recv):
        yield ChunkOperation((message.target, target), (message.source, source), add=False)


def _pairs(send: Move, recv: Move) -> Iterator[Place]:
    return zip(range(send.start, send.stop), range(recv.start, recv.stop), strict=True)


def _check(schedule: Schedule, message: MatchedMessage) -> None:
    if message.recv.add or message.sent:
        raise ScheduleError(
            texts.NOT_FUSED(schedule=schedule, step=message.sent, source=message.source, target=message.target)
        )


def one_after_another(size: int) -> TwoShotPlan:
    """The plan whose sums are added up in the order of ranks: what a device does to a chunk in one pass over all
    contributions, with each partial sum in a register."""
    tasks = [
        (
            *(ChunkOperation((0, rank), (source, rank), add=True) for source in range(1, size)),
            *(ChunkOperation((target, rank), (0, rank), add=False) for target in range(1, size)),
        )
        for rank in range(size)
    ]
    return TwoShotPlan("one after another", size, size, tuple(tasks), (1,) * size)


def order_of(fused: TwoShotPlan, rank: int) -> list[int]:
    """Whose contributions to its chunk the rank adds, one after another, before it writes the sum into the buffers of
    all of them. Raises ScheduleError where its tasks are not that."""
    if not is_one_pass(fused, rank):
        raise ScheduleError(texts.NOT_ONE_PASS(plan=fused.name, rank=rank))
    return _sources(fused, rank)


def is_one_pass(fused: TwoShotPlan, rank: int) -> bool:
    """Whether the rank adds contributions one after another, and then writes the sum into the buffers of all of
    them."""
    order, tasks = _sources(fused, rank), fused.tasks[rank]
    home = (order[0], rank)
    summed = [ChunkOperation(home, (source, rank), add=True) for source in order[1:]]
    given = {ChunkOperation((target, rank), home, add=False) for target in order[1:]}
    return tasks[: len(summed)] == tuple(summed) and set(tasks[len(summed) :]) == given


def _sources(fused: TwoShotPlan, rank: int) -> list[int]:
    """Whose contributions are added, in this order."""
    additions = [task for task in fused.tasks[rank] if task.add]
    return [*(task.target[0] for task in additions[:1]), *(task.source[0] for task in additions)] or [rank]


def plan(size: int, shards: int) -> TwoShotPlan:
    """The same in memory that the ranks share."""
    return fuse(NAME, reduce_scatter(size, shards), sliced.all_gather(size))
