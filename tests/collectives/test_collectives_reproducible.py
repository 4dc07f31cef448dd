"""The canonical tree and its schedules: proved from shards to sums, shown to say no, and run on numbers."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from mutants import KINDS, all_steps, edit, merge, mutant, reorder, with_steps, with_tasks

from ringtrain.collectives.algorithms import ring
from ringtrain.collectives.algorithms.canonical import canonical, canonical_reduce_scatter
from ringtrain.collectives.algorithms.shards import add_up, are_siblings, folds, partials, shard_range, slots
from ringtrain.collectives.catalogue import FLAT, make_schedule
from ringtrain.collectives.compose import all_reduce
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.execution.mapped import device_operations, make_mapped
from ringtrain.collectives.execution.node_program import ChunkOperation, canonical_program
from ringtrain.collectives.execution.reduction import HOST
from ringtrain.collectives.proof.addition_order import prove, prove_node_program
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Move, Step
from ringtrain.errors import ScheduleError, UsageError
from tests.loopback.world import LoopbackWorld
from tests.says import says

RANKS, SHARDS = [*range(1, 10), 16], range(1, 17)
WORLDS = [(size, shards) for shards in SHARDS for size in RANKS if size <= shards]


def nodes_of(shards):
    """Every node of the tree, by its definition."""
    nodes = {(i, i + 1) for i in range(shards)}

    def join(a, b):
        nodes.add((a[0], b[1]))
        return a[0], b[1]

    add_up(sorted(nodes), join)
    return nodes


# ── the tree ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_tree_adds_neighbours_first_and_an_odd_one_passes_up():
    def join(a, b):
        return f"({a}{b})"

    assert add_up("01234567", join) == "(((01)(23))((45)(67)))"
    assert add_up("0123456", join) == "(((01)(23))((45)6))"
    assert (add_up("01234", join), add_up("0", join)) == ("(((01)(23))4)", "0")


@pytest.mark.parametrize("shards", [1, 5, 6, 8, 11])
def test_siblings_are_those_that_the_tree_adds(shards):
    nodes = nodes_of(shards)
    spans = [(a, b) for a in range(shards) for b in range(a + 1, shards + 1)]
    for left in spans:
        for right in spans:
            siblings = {left, right, (left[0], right[1])} <= nodes and left[1] == right[0]
            assert are_siblings(left, right, shards) == siblings, (left, right)


@pytest.mark.parametrize("shards", SHARDS)
def test_a_rank_is_left_with_its_maximal_subtrees(shards):
    nodes = nodes_of(shards)
    for size in range(1, shards + 1):
        for rank in range(size):
            start, stop = shard_range(rank, size, shards)
            within = {node for node in nodes if start <= node[0] and node[1] <= stop}
            maximal = {a for a in within if not any(b != a and b[0] <= a[0] and a[1] <= b[1] for b in within)}
            assert partials(rank, size, shards) == sorted(maximal)
            assert slots(start, stop, shards) <= max(math.log2(shards), 1)
        assert {shard_range(rank, size, shards)[0] for rank in range(size)} == {
            rank * shards // size for rank in range(size)
        }


def test_shards_are_added_as_a_binary_counter_carries():
    folded, left = folds(2, 5, 8)
    assert [(fold.adds, fold.keep) for fold in folded] == [((), 0), ((0,), 0), ((), None)]
    assert left == [(2, 4), (4, 5)]
    assert [(fold.adds, fold.keep) for fold in folds(0, 4, 8)[0]] == [((), 0), ((0,), 0), ((), 1), ((1, 0), None)]
    assert slots(0, 8, 8) == 3 and slots(7, 8, 8) == 0


# ── proofs ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_every_number_of_ranks_is_proved():
    for size, shards in WORLDS:
        proof = prove(canonical(size, shards), shards)
        assert proof.rounds == (2 if size > 1 else 0)
        brought = [len(partials(rank, size, shards)) for rank in range(size)]
        assert proof.sent == tuple((size - 1) * (count + 1) for count in brought)
        prove_node_program(canonical_program(size, shards), shards)


def test_it_is_proved_as_contributions_of_ranks_too():
    assert verify_schedule(canonical(6, 11)).rounds == 2
    assert canonical_reduce_scatter(3, 8).inputs_of(1) == 2 and make_schedule("ring", 3).inputs_of(1) == 1


def qualifies(schedule, shards):
    """Whether it is proved to add in the tree."""
    try:
        prove(schedule, shards)
    except ScheduleError:
        return False
    return True


def test_schedules_that_add_in_the_tree_are_proved_to_and_no_others():
    qualifying = {size: [name for name in FLAT if qualifies(make_schedule(name, size), 8)] for size in (2, 3, 4)}
    assert qualifying == {2: list(FLAT), 3: [], 4: ["tree", "butterfly", "recursive-doubling", "sliced"]}
    assert "star" in [name for name in FLAT if qualifies(make_schedule(name, 3), 3)]  # (0 + 1) + 2 is the tree of three


def rejected(schedule, shards, message):
    with pytest.raises(ScheduleError, match=message):
        prove(schedule, shards)


def test_why_one_does_not_qualify_is_told():
    orders = "(((0 + 1) + (2 + 3)) + (4 + 5)) + (6 + 7)", "((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))"
    rejected(make_schedule("star", 4), 8, says(0, "rank", "chunk", *orders))
    rejected(make_schedule("sliced", 3), 8, says("rank 1", "2:4, 4:5", 8))
    rejected(canonical(3, 8), 9, says("rank 0", "0:2, 2:3", 9))
    with pytest.raises(UsageError, match=says(9, 8, "shard", "fewer")):
        canonical(9, 8)


# ── mutants ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_mutants_are_rejected(kind):
    """But steps may be exchanged, and made one, where that changes no sum."""
    denied = Counter()
    for original, shards in ((canonical(3, 8), 8), (canonical(6, 8), 8), (canonical(5, 7), 7)):
        for seed in range(8):
            wrong = mutant(kind, original, seed)
            denied[all_steps(wrong) == all_steps(original) or not qualifies(wrong, shards)] += 1
    assert not denied[False] or kind in (reorder, merge)
    assert denied[True] >= 8


def with_additions(schedule, rank, pairs):
    """The rank adds these pairs of chunks (target, source) instead."""
    steps = all_steps(schedule)
    local = [k for k, step in enumerate(steps[rank]) if {move.peer for move in step.sends} == {rank}]
    additions = [Step((Move(rank, b, b + 1),), (Move(rank, a, a + 1, add=True),)) for a, b in pairs]
    steps[rank][local[0] : local[-1] + 1] = additions
    return with_steps(schedule, steps)


def test_additions_in_another_order_are_seen_though_every_rank_agrees():
    four = canonical(4, 8)  # rank 0 has 01 in the buffer, 23, 45 and 67 in chunks 4, 8 and 12
    prove(with_additions(four, 0, [(0, 4), (8, 12), (0, 8)]), 8)
    prove(with_additions(four, 0, [(12, 8), (0, 4), (0, 12)]), 8)  # 67 + 45
    for pairs in ([(0, 4), (0, 8), (0, 12)], [(0, 8), (4, 12), (0, 4)], [(8, 12), (4, 8), (0, 4)]):
        wrong = with_additions(four, 0, pairs)
        verify_schedule(wrong)  # an all-reduce it is
        rejected(wrong, 8, r"rank 0, chunk 0 is added as .*; wanted \(\(0 \+ 1\) \+ \(2 \+ 3\)\) \+ ")


def test_a_lane_dropped_or_doubled_is_named():
    three = canonical(3, 8)  # rank 1 brings 2:4 and 4:5; rank 0 has them in chunks 3 and 6
    rejected(with_additions(three, 0, [(0, 3), (9, 12), (0, 9)]), 8, "ends with the gradient of shard 4 0 times")
    rejected(with_additions(three, 0, [(0, 3), (0, 3), (0, 6)]), 8, "ends with the gradient of shard 2 2 times")
    dropped = all_steps(three)
    edit(dropped, "sends", 1, 0, 0, ())
    rejected(with_steps(three, dropped), 8, "rank 1 to rank 2: 2 sends, 3 receives|sends, . receives")


def test_a_lane_of_another_rank_is_a_wrong_one_and_so_is_another_owner():
    """Rank 1 sends its lanes in the other order: the sums are of the right shards, in another order."""
    three = canonical(3, 8)
    steps = all_steps(three)
    first, second, *others = steps[1][0].sends
    steps[1][0] = replace(steps[1][0], sends=(second, first, *others))
    rejected(with_steps(three, steps), 8, says("added", "wanted"))
    halves = canonical_reduce_scatter(3, 8), ring.all_gather(3)  # whose owners differ
    rejected(all_reduce("made", *halves), 8, says(0, "gradient", "shard"))


def test_mutants_of_the_plan_in_shared_memory_are_rejected():
    for size, shards in ((3, 8), (4, 8), (5, 7)):
        program = canonical_program(size, shards)
        for rank, rank_tasks in enumerate(program.tasks):
            for i, task in enumerate(rank_tasks):
                lane = task._replace(source=(task.source[0], (task.source[1] + size) % (2 * size)))
                for instead in ((), (task, task), (task._replace(add=not task.add),), (lane,)):
                    tasks = (*rank_tasks[:i], *instead, *rank_tasks[i + 1 :])
                    if instead == (task, task) and not task.add:
                        continue  # a copy may be made twice
                    with pytest.raises(ScheduleError):
                        prove_node_program(with_tasks(program, rank, tasks), shards)


def test_a_lane_that_is_not_there_and_an_order_that_is_not_the_trees_are_named_in_shared_memory():
    program = canonical_program(3, 8)
    tasks = (program.tasks[0][0]._replace(source=(0, 3)), *program.tasks[0][1:])
    with pytest.raises(ScheduleError, match=says(0, 3, 1, "touches", "chunks")):
        prove_node_program(with_tasks(program, 0, tasks), 8)
    program = canonical_program(4, 8)
    chain = [ChunkOperation((0, 0), (source, 0), add=True) for source in (1, 2, 3)]
    wrong = with_tasks(program, 0, (*chain, *program.tasks[0][3:]))
    with pytest.raises(ScheduleError, match=says(0, "rank", "chunk", "(((0 + 1) + (2 + 3)) + (4 + 5)) + (6 + 7)")):
        prove_node_program(wrong, 8)


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────
def gradient(shard, count):
    return np.random.default_rng([shard, count]).standard_normal(count).astype("f4")


def left(rank, size, shards, count):
    """What the rank has when its shards are added, the last first: as the exchange lays it out."""
    *others, last = [
        add_up([gradient(shard, count) for shard in range(*node)], np.add) for node in partials(rank, size, shards)
    ]
    return [last, *others]


@pytest.mark.parametrize(("size", "shards"), [(1, 5), (2, 7), (3, 8), (5, 16), (6, 8)])
def test_the_same_bits_over_messages_and_in_shared_memory(size, shards):
    counts = [0, 1, size, 101]
    most = max(len(partials(rank, size, shards)) for rank in range(size))

    def body(t):
        ends = []
        for tag, count in enumerate(counts):
            arrays = [t.allocate(count, "f4") for _ in range(most)]
            lanes = [t.peer_views(array) for array in arrays]
            counter = t.signal_counter(tag)
            shared = make_mapped(
                canonical_program(size, shards), t, lanes[0], counter, "sum", "float32", HOST, lanes[1:]
            )
            private = [np.zeros(count, "f4") for _ in partials(t.rank, size, shards)]
            sent = Execution(canonical(size, shards), t, private[0], np.add, tag, segment_bytes=24, inputs=private[1:])
            for _ in range(2):
                for array, copy, value in zip(arrays, private, left(t.rank, size, shards, count), strict=False):
                    array[:] = copy[:] = value
                for run in (shared, sent):
                    run.start()
                    run.wait(20.0)
            ends.append((arrays[0].tobytes(), private[0].tobytes(), shared.bytes_sent, sent.bytes_sent))
        return ends

    want = [add_up([gradient(shard, count) for shard in range(shards)], np.add).tobytes() for count in counts]
    every = LoopbackWorld(size).run(body)
    for ends in every:
        assert [end[:2] for end in ends] == [(bits, bits) for bits in want]
    assert size < 2 or sum(ends[-1][2] for ends in every) == sum(ends[-1][3] for ends in every)


@pytest.mark.parametrize(("size", "shards"), [(1, 4), (2, 8), (3, 8), (4, 8)])
def test_on_a_device_each_sum_is_one_operation_and_the_last_goes_to_all(size, shards):
    class Device:
        def add_all(self, sources, targets):
            sums.append((len(sources), len(targets)))
            total = add_up(sources, np.add)
            for target in targets:
                target[:] = total

    program, sums = canonical_program(size, shards), []
    most = max(program.inputs_of)
    arrays = [[np.zeros(8, "f4") for _ in range(size)] for _ in range(most)]
    for rank in range(size):
        for lane, value in enumerate(left(rank, size, shards, 8)):
            arrays[lane][rank][:] = value
    edges = [8 * i // size for i in range(size + 1)]
    for rank in range(size):
        a, b = edges[rank], edges[rank + 1]
        views = [[array[a:b] for array in lane_arrays] for lane_arrays in arrays]
        for function, arguments in device_operations(
            Device(), program, rank, lambda at, v=views: v[at[1] // size][at[0]]
        ):
            function(*arguments)
    want = add_up([gradient(shard, 8) for shard in range(shards)], np.add)
    assert all(array.tobytes() == want.tobytes() for array in arrays[0])
    if size > 1:
        assert sums == [*[(2, 1)] * (sum(program.inputs_of) - 2), (2, size)] * size
