"""Every schedule is proved, and keeps the bounds that it states: rounds, messages and bytes by formula."""

from math import ceil, log2

import pytest

from ringtrain.collectives.algorithms import double_tree
from ringtrain.collectives.catalogue import (
    FLAT,
    HALVES,
    SCHEDULES,
    check_name,
    make_broadcast,
    make_by_rank,
    make_schedule,
    needs_nodes,
)
from ringtrain.collectives.compose import all_reduce
from ringtrain.collectives.proof.verify import Proof, verify_schedule
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Step
from ringtrain.collectives.topology import Topology, even, filled, topology_from_nodes
from ringtrain.errors import UsageError
from tests.says import says

SIZES = [*range(1, 18), 24, 32]
UNEVEN = [(4, 2, 3), (1, 5), (5, 1), (1, 1, 1), (2, 1, 4, 1), (7, 3, 2), (3, 3), (4, 4), (2, 2, 2), (8, 8, 8, 8)]


def levels(size):
    return ceil(log2(size))


def power_below(size):
    return 1 << (size.bit_length() - 1)


def share(proof: Proof, schedule, rank=None) -> float:
    """What the busiest rank, or this one, sends, in buffers."""
    return (max(proof.sent) if rank is None else proof.sent[rank]) / schedule.chunks


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_proved_at_every_size(name, size):
    schedule = make_schedule(name, size)
    proof = verify_schedule(schedule)
    assert all(proof.sent[rank] <= schedule.max_chunks_sent(rank) for rank in range(size))
    if size == 1:
        assert proof == Proof(0, (0,), (0,))


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_proved_alone_and_have_the_same_owners(name):
    for size in SIZES:
        owners = []
        for goal in ("reduce-scatter", "all-gather"):
            schedule = make_schedule(name, size, goal)
            verify_schedule(schedule)
            owners.append([schedule.owner(chunk) for chunk in range(schedule.chunks)])
            assert schedule.goal == goal and {*owners[-1]} <= {*range(size)}
        assert owners[0] == owners[1]


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("size", range(1, 10))
def test_every_half_broadcasts_from_any_root(name, size):
    for root in range(size):
        schedule = make_broadcast(name, size, root)
        assert {schedule.owner(chunk) for chunk in range(schedule.chunks)} == {root}
        assert schedule.goal == ALL_GATHER
        verify_schedule(schedule)


@pytest.mark.parametrize("name", ["ring", "circulant", "sliced", "butterfly"])
@pytest.mark.parametrize("goal", [REDUCE_SCATTER, ALL_GATHER])
def test_halves_by_rank_end_with_a_row_on_each(name, goal):
    for size in (1, 2, 4, 8) if name == "butterfly" else range(1, 10):
        schedule = make_by_rank(name, size, goal)
        assert [schedule.owner(chunk) for chunk in range(schedule.chunks)] == list(range(size))
        assert schedule.goal == goal
        verify_schedule(schedule)


@pytest.mark.parametrize("counts", UNEVEN)
@pytest.mark.parametrize("outer", FLAT)
@pytest.mark.parametrize("inner", HALVES)
def test_hierarchical_over_any_pair_on_any_nodes(inner, outer, counts):
    verify_schedule(make_schedule(f"hierarchical:{inner}:{outer}", filled(counts)))


# ── rounds and bytes ──────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "rounds", "sent"),
    [
        ("ring", lambda size: 2 * (size - 1), lambda size: (2 * (size - 1),) * size),
        ("circulant", lambda size: 2 * levels(size), lambda size: (2 * (size - 1),) * size),
        ("sliced", lambda size: 2, lambda size: (2 * (size - 1),) * size),
        ("star", lambda size: size, lambda size: (size - 1,) + (1,) * (size - 1)),
    ],
)
def test_rounds_and_chunks_by_formula(name, rounds, sent):
    for size in SIZES[1:]:
        proof = verify_schedule(make_schedule(name, size))
        assert (proof.rounds, proof.sent) == (rounds(size), sent(size))
        assert name not in ("ring", "sliced") or proof.messages == proof.sent


@pytest.mark.parametrize("size", SIZES)
def test_recursive_doubling_has_the_fewest_rounds_of_all_and_a_tree_climbs_and_descends(size):
    core = power_below(size)
    proof = verify_schedule(make_schedule("recursive-doubling", size))
    assert proof.rounds == core.bit_length() - 1 + 2 * (size != core)
    assert proof.sent[0] == core.bit_length() - 1 + (size != core)
    proof = verify_schedule(make_schedule("tree", size))
    assert proof.rounds == 2 * levels(size)
    assert proof.sent[0] == max(proof.sent) == levels(size)
    assert all(proof.sent[leaf] == 1 for leaf in range(1, size, 2))


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES[1:])
def test_double_tree_sends_two_buffers_at_most(size, pieces):
    schedule = all_reduce("double-tree", double_tree.reduce(size, pieces), double_tree.broadcast(size, pieces))
    proof = verify_schedule(schedule)
    assert proof.rounds <= 4 * (pieces + power_below(size).bit_length() - 2)
    assert share(proof, schedule) <= 2


@pytest.mark.parametrize("size", SIZES)
def test_nobody_is_within_both_trees_nor_receives_two_pieces_at_once(size):
    times = double_tree.timetable(size)
    within = [{edge.parent for edge in times if edge.tree == tree} for tree in (0, 1)]
    assert not within[0] & within[1]
    for end in ("parent", "child"):
        used = [(getattr(edge, end), time % 2) for edge, time in times.items()]
        assert len(set(used)) == len(used)
    for tree in (0, 1):
        children = [edge.child for edge in times if edge.tree == tree]
        assert len(set(children)) == len(children) == size - 1


@pytest.mark.parametrize("size", SIZES)
def test_butterfly_folds_what_is_no_power_of_two(size):
    schedule, core = make_schedule("butterfly", size), power_below(size)
    proof = verify_schedule(schedule)
    assert proof.rounds == 2 * core.bit_length() - 2 + 2 * (size != core)
    least = 2 * (core - 1) / core
    assert share(proof, schedule) == least + (size != core)
    assert share(proof, schedule, size - 1) == least  # the last rank has nobody behind it, and stands behind nobody
    assert size == core or share(proof, schedule, 1) == 1


def test_sliced_adds_in_the_tree_over_ranks():
    """Rank 1 of four: contributions of 0, 2 and 3 in scratch, its own in the buffer. It visits the next rank first."""
    chunk, scratch = 1, {0: 5, 2: 13, 3: 17}

    def fold(source, target):
        return Move(1, source, source + 1), Move(1, target, target + 1, add=True)

    pairs = [fold(scratch[0], chunk), fold(scratch[3], scratch[2])], [fold(scratch[2], chunk)]
    assert make_schedule("sliced", 4).steps(1)[1:3] == tuple(
        Step(*map(tuple, zip(*level, strict=True))) for level in pairs
    )
    first, *_, last = make_schedule("sliced", 5).steps(3)
    assert [move.peer for move in first.sends] == [move.peer for move in last.sends] == [4, 0, 1, 2]


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 2), (2, 4), (4, 3), (4, 8)])
def test_a_network_interface_carries_the_same_whatever_the_ranks_of_its_node(nodes, ranks):
    for name in ("hierarchical", "hierarchical:tree:ring", "hierarchical:sliced:circulant"):
        topology = even(nodes * ranks, nodes)
        schedule, home = make_schedule(name, topology), topology.node_of()
        for ranks_of_node in topology.nodes:
            out = [move for rank in ranks_of_node for step in schedule.steps(rank) for move in step.sends]
            outside = sum(move.stop - move.start for move in out if home[move.peer] != home[ranks_of_node[0]])
            assert outside / schedule.chunks == 2 * (nodes - 1) / nodes


def test_every_local_rank_carries_its_slice_and_the_leader_all():
    topology = filled((4, 2, 3))
    home = topology.node_of()

    def carried(name, rank):
        """The chunks that a rank exchanges with other nodes."""
        moves = [m for s in make_schedule(name, topology).steps(rank) for m in s.sends if home[m.peer] != home[rank]]
        return {chunk for move in moves for chunk in range(move.start, move.stop)}

    for ranks in topology.nodes:
        for local, rank in enumerate(ranks):
            slices = [number for number in range(4) if number % len(ranks) == local]
            assert carried("hierarchical", rank) == {3 * number + i for number in slices for i in range(3)}
            assert bool(carried("hierarchical:tree:ring", rank)) == (local == 0)


# ── names and nodes ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rign", says("--plugin", "'rign'", "did you mean 'ring'")),
        ("ring:star", says("'ring:star'")),
        ("hierarchical:ring", says("'hierarchical:ring'")),
        ("hierarchical:rng:star", says("'rng'", "within", "did you mean 'ring'")),
        ("hierarchical:ring:slized", says("'slized'", "across", "did you mean 'sliced'")),
        ("hierarchical:recursive-doubling:ring", says("'recursive-doubling'", "within", "nodes")),
    ],
)
def test_unknown_schedules_get_the_nearest_name(name, message):
    with pytest.raises(UsageError, match=message):
        make_schedule(name, 4)
    with pytest.raises(UsageError, match=message):
        check_name(name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: even(0), says(0, "least", "needed")),
        (lambda: make_schedule("ring", -3), says(-3, "least", "needed")),
        (lambda: even(3, 4), says(3, 4, "nodes", "wanted")),
        (lambda: even(3, 0), says(3, 0, "nodes", "wanted")),
        (lambda: filled((2, 0, 1)), says(1, "every", "least")),
        (lambda: filled(()), says(0, "least", "needed")),
        (lambda: topology_from_nodes([0, 2]), says(1, "every", "least")),
        (lambda: Topology(((0, 1), (1,))), says([0, 1, 1], 2)),
        # What has no halves, and owners of several rows.
        (
            lambda: make_schedule("recursive-doubling", 4, "all-gather"),
            says("'recursive-doubling'", "all-gather") + "ring, tree",
        ),
        (lambda: make_schedule("hierarchical", 4, "reduce-scatter"), says("'hierarchical'", "reduce-scatter")),
        (lambda: make_schedule("ring", 4, "all-gahter"), says("'all-gahter'") + "did you mean 'all-gather'"),
        (lambda: make_by_rank("tree", 4, ALL_GATHER), says("tree", ALL_GATHER, 4)),
        (lambda: make_by_rank("double-tree", 4, ALL_GATHER), says("double-tree", ALL_GATHER, 4)),
        (lambda: make_by_rank("star", 3, ALL_GATHER), says("star", ALL_GATHER, 3)),
        (lambda: make_by_rank("butterfly", 3, ALL_GATHER), says("butterfly", ALL_GATHER, 3)),
    ],
)
def test_nodes_halves_and_rows_that_cannot_be(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_who_needs_nodes_and_that_ranks_of_a_node_need_not_be_neighbours():
    assert [name for name in SCHEDULES if needs_nodes(name)] == ["hierarchical"]
    assert needs_nodes("hierarchical:ring:ring")
    assert even(8, 3).counts == (3, 3, 2)
    topology = topology_from_nodes([0, 1, 0, 2, 1, 0, 2, 2, 0])
    assert topology.nodes == ((0, 2, 5, 8), (1, 4), (3, 6, 7)) and topology.counts == (4, 2, 3)
    verify_schedule(make_schedule("hierarchical", topology))
