"""Two-shot all-reduce in memory that ranks share: a schedule without its messages, whose work is done in place.

It is made from a reduce-scatter that sends raw contributions into their owner's scratch, where the owner adds them, and
an all-gather that copies each owner's chunk to all ranks, such as :mod:`ringtrain.collectives.algorithms.sliced`. When
ranks can read and write one another's buffers, the owner reads a contribution in its sender's buffer, and writes the
sum to all buffers. Nothing is sent and nothing is staged. The program keeps the schedule's additions, in their order,
and its copies:

1.  Every rank waits until all ranks have come: their buffers are final.
2.  Each owner adds the contributions to its chunk, in its peers' buffers, and writes the sum into all buffers.
3.  Every rank waits until all ranks are done.

Between the two waits a rank touches only its own chunk, in all buffers, and no other rank touches that chunk. The speed
of a rank then changes nothing: :func:`verify_node_program` proves this, and that every rank ends with the same sum of
every contribution, once each. The order of additions, and so the bits of the result, are the schedule's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ringtrain.collectives.algorithms import sliced
from ringtrain.collectives.algorithms.canonical import NAME, canonical_reduce_scatter
from ringtrain.collectives.matching import MatchedMessage, Steps, all_steps, is_local, messages
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError

# (rank of the buffer, chunk): chunks are counted on, from the buffer's end, through the rank's further inputs.
BufferChunk = tuple[int, int]


class ChunkOperation(NamedTuple):
    """Addition of the chunk at ``source`` to the chunk at ``target``, or a copy over it."""

    target: BufferChunk
    source: BufferChunk
    add: bool


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """``tasks[rank]``: the rank's operations between the two waits, in this order, all on chunk ``rank``.
    ``inputs_of[rank]``: the number of its input arrays (:meth:`ringtrain.collectives.schedule.Schedule.inputs_of`)."""

    name: str
    size: int
    chunks: int
    tasks: tuple[tuple[ChunkOperation, ...], ...]
    inputs_of: tuple[int, ...]


def two_shot_program(name: str, scatter: Schedule, gather: Schedule) -> NodeProgram:
    """Return the program of the two halves of an all-reduce. Raises ScheduleError for other schedules."""
    steps = all_steps(scatter)
    tasks: list[list[ChunkOperation]] = [[] for _ in range(scatter.size)]
    for rank, home in enumerate(_homes(scatter, steps)):
        tasks[rank] += _additions(steps[rank], rank, home)
    for message in messages(gather, all_steps(gather)):
        _check(gather, message)
        tasks[message.source] += _copies(message)
    return NodeProgram(name, scatter.size, scatter.chunks, tuple(map(tuple, tasks)), _inputs(scatter))


def _inputs(scatter: Schedule) -> tuple[int, ...]:
    return tuple(map(scatter.inputs_of, range(scatter.size)))


def _homes(scatter: Schedule, steps: Steps) -> list[dict[int, BufferChunk]]:
    """Return, for each rank, the place of each of the schedule's chunks before the additions: its own contributions in
    its input arrays; the others, which the schedule has in scratch, in the buffers of their senders."""
    homes = [
        {chunk: (rank, chunk) for chunk in range(inputs * scatter.chunks)}
        for rank, inputs in enumerate(_inputs(scatter))
    ]
    for message in messages(scatter, steps):
        if message.source != message.target:
            _check(scatter, message)
            for source, target in _pairs(message.send, message.recv):
                homes[message.target][target] = (message.source, source)
    return homes


def _additions(steps: tuple[Step, ...], rank: int, home: dict[int, BufferChunk]) -> Iterator[ChunkOperation]:
    for step in steps:
        if is_local(step, rank):
            for send, recv in zip(step.sends, step.recvs, strict=True):
                for source, target in _pairs(send, recv):
                    yield ChunkOperation(home[target], home[source], recv.add)


def _copies(message: MatchedMessage) -> Iterator[ChunkOperation]:
    for source, target in _pairs(message.send, message.recv):
        yield ChunkOperation((message.target, target), (message.source, source), add=False)


def _pairs(send: Move, recv: Move) -> Iterator[BufferChunk]:
    return zip(range(send.start, send.stop), range(recv.start, recv.stop), strict=True)


def _check(schedule: Schedule, message: MatchedMessage) -> None:
    if message.recv.add or message.sent:
        raise ScheduleError(
            f"{schedule!r} cannot be one program of a node: in step {message.sent} rank {message.source} sends rank "
            f"{message.target} a partial sum or a chunk that rank {message.target} adds on arrival"
        )


def one_pass_program(size: int) -> NodeProgram:
    """Return the program that adds contributions in the order of ranks: a device does so in one pass over all
    contributions, with each partial sum in a register."""
    tasks = [
        (
            *(ChunkOperation((0, rank), (source, rank), add=True) for source in range(1, size)),
            *(ChunkOperation((target, rank), (0, rank), add=False) for target in range(1, size)),
        )
        for rank in range(size)
    ]
    return NodeProgram("one after another", size, size, tuple(tasks), (1,) * size)


def addition_order(program: NodeProgram, rank: int) -> list[int]:
    """Return :func:`one_pass_order`. Raises ScheduleError if there is none."""
    order = one_pass_order(program, rank)
    if order is None:
        raise ScheduleError(
            f"{program.name} on rank {rank} does not add all contributions in sequence and then copy the sum to all "
            "ranks: a device does this in one pass and needs such a program"
        )
    return order


def one_pass_order(program: NodeProgram, rank: int) -> list[int] | None:
    """Return the ranks whose contributions the rank adds one after another, before it writes the sum into the buffers
    of all of them; None if its tasks do anything else."""
    tasks = program.tasks[rank]
    additions = [task for task in tasks if task.add]
    order = [*(task.target[0] for task in additions[:1]), *(task.source[0] for task in additions)] or [rank]
    home = (order[0], rank)
    summed = [ChunkOperation(home, (source, rank), add=True) for source in order[1:]]
    copies = {ChunkOperation((target, rank), home, add=False) for target in order[1:]}
    is_one_pass = tasks[: len(summed)] == tuple(summed) and set(tasks[len(summed) :]) == copies
    return order if is_one_pass else None


def canonical_program(size: int, shards: int) -> NodeProgram:
    """Return the canonical all-reduce in memory that the ranks share."""
    return two_shot_program(NAME, canonical_reduce_scatter(size, shards), sliced.all_gather(size))
