"""Programs of a node: derived from schedules, and proved by a rule of their own."""

import pytest
from mutants import with_tasks

from ringtrain.collectives.algorithms import butterfly, ring, sliced, star
from ringtrain.collectives.execution.node_program import (
    ChunkOperation,
    NodeProgram,
    addition_order,
    one_pass_program,
    two_shot_program,
)
from ringtrain.collectives.proof.shared_memory_proof import verify_node_program
from ringtrain.collectives.shared_memory import node_program
from ringtrain.errors import ScheduleError
from tests.says import says

RANKS = [*range(1, 18), 24, 32]


def program_of(size):
    return two_shot_program("sliced", sliced.reduce_scatter(size), sliced.all_gather(size))


@pytest.mark.parametrize("size", RANKS)
def test_sliced_is_fused_and_proved_and_so_are_the_plan_that_runs_and_one_pass(size):
    program = program_of(size)
    verify_node_program(program)
    assert (program.size, program.chunks) == (size, size)
    for rank, tasks in enumerate(program.tasks):
        assert [task.add for task in tasks] == [True] * (size - 1) + [False] * (size - 1)
        assert {task.target for task in tasks if not task.add} == {(peer, rank) for peer in range(size) if peer != rank}
    verify_node_program(node_program(size))
    program = one_pass_program(size)
    verify_node_program(program)
    assert [addition_order(program, rank) for rank in range(size)] == [list(range(size))] * size


def test_additions_keep_the_order_of_the_schedule():
    """Rank 1 of four: (0 + 1) + (2 + 3), each where the schedule adds it, but in the buffer it came from."""
    tasks = program_of(4).tasks[1]
    assert tasks[:3] == (
        ChunkOperation((1, 1), (0, 1), True),
        ChunkOperation((2, 1), (3, 1), True),
        ChunkOperation((1, 1), (2, 1), True),
    )
    assert set(tasks[3:]) == {ChunkOperation((peer, 1), (1, 1), False) for peer in (0, 2, 3)}


def test_sums_of_sums_and_one_that_not_all_are_given_are_not_one_pass():
    for size in (4, 8):
        with pytest.raises(ScheduleError, match=says("sliced", 1)):
            addition_order(program_of(size), 1)
    program = one_pass_program(3)
    short = with_tasks(program, 0, program.tasks[0][:-1])
    with pytest.raises(ScheduleError, match=says(0, "contributions", "program")):
        addition_order(short, 0)


@pytest.mark.parametrize(
    "halves",
    [
        (ring.reduce_scatter(3), ring.all_gather(3)),
        (butterfly.reduce_scatter(4), butterfly.all_gather(4)),
        (sliced.reduce_scatter(4), butterfly.all_gather(4)),
        (star.reduce(3), star.broadcast(3)),
    ],
    ids=["ring", "butterfly", "half", "star"],
)
def test_what_forwards_or_adds_on_arrival_is_not_fused(halves):
    with pytest.raises(ScheduleError, match=says("partial", "arrival")):
        two_shot_program("made", *halves)


def mutants(program: NodeProgram):
    """Every program that differs in one task: left out, done twice, another kind, turned round, in another's chunk,
    from another buffer, or before the one before it."""
    for rank, tasks in enumerate(program.tasks):
        for i, task in enumerate(tasks):
            elsewhere = (task.target[0], (task.target[1] + 1) % program.chunks)
            other = ((task.source[0] + 1) % program.size, task.source[1])
            changed = {
                "dropped": (),
                "doubled": (task, task),
                "kind": (task._replace(add=not task.add),),
                "turned": (ChunkOperation(task.source, task.target, task.add),),
                "chunk": (task._replace(target=elsewhere),),
                "source": (task._replace(source=other),),
            }
            for kind, instead in changed.items():
                yield kind, with_tasks(program, rank, (*tasks[:i], *instead, *tasks[i + 1 :]))
            if i:
                yield "order", with_tasks(program, rank, (*tasks[: i - 1], task, tasks[i - 1], *tasks[i + 1 :]))


def is_right(program):
    """Whether every place ends with every contribution once, added in one order, as nested sums up to the order of two
    operands. A mutant may be: a copy done twice, or contributions added in another order, by all alike."""
    values = {(rank, chunk): str(rank) for rank in range(program.size) for chunk in range(program.chunks)}
    for tasks in program.tasks:
        for task in tasks:
            value = values[task.source]
            values[task.target] = f"({'+'.join(sorted([values[task.target], value]))})" if task.add else value
    alike = all(value == values[0, chunk] for (_, chunk), value in values.items())
    return alike and all(sorted(filter(str.isdigit, v)) == [*map(str, range(program.size))] for v in values.values())


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_mutants_are_rejected_unless_they_do_the_same(size):
    program, seen = program_of(size), set()
    assert is_right(program)
    for kind, mutant in mutants(program):
        if kind != "chunk" and is_right(mutant):
            verify_node_program(mutant)
            continue
        seen.add(kind)
        with pytest.raises(ScheduleError):
            verify_node_program(mutant)
    assert seen >= {"dropped", "doubled", "kind", "chunk", "source"}


def test_touching_anothers_chunk_and_a_wrong_sum_are_named():
    program = program_of(3)
    with pytest.raises(ScheduleError, match=says(1, 0, "hazard", "touch")):
        verify_node_program(with_tasks(program, 1, (*program.tasks[1], ChunkOperation((2, 0), (1, 0), False))))
    program = program_of(2)
    with pytest.raises(ScheduleError, match=says("rank 0, chunk 1", "contribution", "rank 1")):
        verify_node_program(with_tasks(program, 1, program.tasks[1][:-1]))


def test_two_orders_of_addition_are_seen():
    """Rank 0's work on its chunk of four buffers a b c d: a ends as (a + (c + d)) + b, b as (b + a) + (c + d)."""
    a, b, c, d = ((rank, 0) for rank in range(4))
    steps = [(c, d, True), (d, b, False), (b, a, True), (a, c, True), (a, d, True), (b, c, True)]
    steps += [(c, a, False), (d, a, False)]
    with pytest.raises(ScheduleError, match=says(1, 0, "rank", "chunk", "added", "order")):
        verify_node_program(with_tasks(program_of(4), 0, tuple(ChunkOperation(*step) for step in steps)))
