"""The work of an all-reduce, counted separately for links inside a node and between nodes: the terms of the times in
:mod:`ringtrain.bench.model.fit`.

The work of a schedule is counted from its steps. An algorithm without known steps (the MPI's own all-reduce, memory
that ranks share) counts as the least possible work.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringtrain.collectives.matching import is_local
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.collectives.topology import Topology


@dataclass(frozen=True, slots=True)
class AlgorithmWork:
    """The work of an algorithm."""

    rounds: int  # steps whose messages all stay inside a node, on the rank with most
    sent: float  # multiples of the buffer: the busiest rank's moves inside its node, the larger direction of each step
    added: float  # multiples of the buffer: the busiest rank's additions
    rounds_between: int = 0  # steps with a message to or from another node, on the rank with most
    sent_between: float = 0.0  # multiples of the buffer: the busiest node's link in its busier direction
    # multiples of the buffer: the busiest rank's messages to and from other nodes, halved
    rank_between: float = 0.0


def work_of(schedule: Schedule, topology: Topology, nodes: Sequence[int] | None = None) -> AlgorithmWork:
    """Return the work of a schedule. Moves within a rank are no messages, and steps of nothing else no rounds; their
    additions count. ``nodes``: numbers of those whose ranks are looked at; None: of all.
    """
    looked_at = topology.nodes if nodes is None else [topology.nodes[node] for node in nodes]
    steps = {rank: schedule.steps(rank) for ranks in looked_at for rank in ranks}
    home = topology.node_of()
    inside, between, moved, added, crossed = [], [], [], [], []
    for rank, of_rank in steps.items():
        leaves = [any(home[move.peer] != home[rank] for move in (*step.sends, *step.recvs)) for step in of_rank]
        between.append(sum(leaves))
        inside.append(sum(not is_local(step, rank) for step in of_rank) - sum(leaves))
        moved.append(sum(_moved_inside(step, rank, home) for step in of_rank))
        added.append(sum(_chunks(move for move in step.recvs if move.add) for step in of_rank))
        every = (move for step in of_rank for move in (*step.sends, *step.recvs))
        crossed.append(_chunks(move for move in every if home[move.peer] != home[rank]) / 2)
    passed = max(_passed(steps, ranks) for ranks in looked_at)
    return AlgorithmWork(
        rounds=max(inside),
        sent=max(moved) / schedule.chunks,
        added=max(added) / schedule.chunks,
        rounds_between=max(between),
        sent_between=passed / schedule.chunks,
        rank_between=max(crossed) / schedule.chunks,
    )


def _moved_inside(step: Step, rank: int, home: Sequence[int]) -> int:
    return max(
        _chunks(move for move in moves if move.peer != rank and home[move.peer] == home[rank])
        for moves in (step.sends, step.recvs)
    )


def _passed(steps: Mapping[int, Sequence[Step]], ranks: Sequence[int]) -> int:
    """Return the chunks that the link of the node with these ranks carries, in its busier direction."""
    group_steps = [step for rank in ranks for step in steps[rank]]
    outward, inward = (
        [move for step in group_steps for move in step.sends],
        [move for step in group_steps for move in step.recvs],
    )
    return max(_chunks(move for move in moves if move.peer not in ranks) for moves in (outward, inward))


def _chunks(moves: Iterable[Move]) -> int:
    return sum(move.stop - move.start for move in moves)


def least_work(topology: Topology) -> AlgorithmWork:
    """Return the least work of any all-reduce of these ranks."""
    local, nodes = max(topology.counts), len(topology.nodes)
    return AlgorithmWork(
        _rounds(local),
        _shares(local),
        (topology.size - 1) / topology.size,
        _rounds(nodes),
        _shares(nodes),
        _shares(nodes) / local,
    )


def _rounds(count: int) -> int:
    """Return ceil(log2)."""
    return (count - 1).bit_length()


def _shares(count: int) -> float:
    """Return the multiples of the buffer that one of ``count`` ranks sends at least."""
    return 2 * (count - 1) / count
