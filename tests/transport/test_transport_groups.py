"""Groups: some ranks of a world, with numbers, messages and collectives of their own."""

import numpy as np
import pytest

from tests.loopback.world import LoopbackWorld

DEADLINE_S = 20.0


def in_group(size, ranks, body, nodes=1):
    """``body(group)`` on the ranks of the group; None elsewhere."""

    def run(t):
        group = t.group(ranks)
        return group and body(group)

    return LoopbackWorld(size, nodes).run(run)


def test_ranks_are_numbered_in_the_order_in_which_they_are_given():
    found = in_group(5, (3, 1, 4), lambda group: (group.rank, group.size, [*group.world_ranks]))
    assert found == [None, (1, 3, [3, 1, 4]), None, (0, 3, [3, 1, 4]), (2, 3, [3, 1, 4])]


def test_neighbours_are_those_of_the_group_on_the_same_node():
    """Nodes of ranks 0 to 2, and 3 to 5."""
    seats = in_group(6, (1, 2, 4), lambda group: group.seat, nodes=2)
    for rank, near, place in ((1, (0, 1), 0), (2, (0, 1), 1), (4, (2,), 0)):
        seat = seats[rank]
        assert (seat.neighbours, seat.local_rank, seat.local_size, seat.nodes) == (near, place, len(near), 2)


def test_messages_are_between_numbers_of_the_group():
    def body(group):
        got, span = np.zeros(2, int), np.full(2, group.rank)
        into, out = group.recvs([(1 - group.rank, got)], 5), group.sends([(1 - group.rank, span)], 5)
        for handle in (into, out):
            handle.start()
        for handle in (into, out):
            handle.wait(DEADLINE_S)
        return group.rank, got.tolist()

    assert in_group(4, (1, 3), body) == [None, (0, [1, 1]), None, (1, [0, 0])]


def test_sums_are_added_in_the_order_of_ranks():
    """In another order the small numbers would be lost in the large one, or the large ones would not cancel."""
    values = {4: 1e20, 0: -1e20, 2: 1.0}

    def body(group):
        span = np.full(3, values[(4, 0, 2)[group.rank]])
        group.native_allreduce_start(span).wait(DEADLINE_S)
        return span.tolist()

    assert in_group(5, (4, 0, 2), body) == [[1.0] * 3, None, [1.0] * 3, None, [1.0] * 3]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_sum_after_another_in_the_same_memory_and_two_of_different_sizes_at_once(size):
    def body(group):
        found = []
        for times in range(1, 5):
            span, more = np.full(2, 1.0 + group.rank) * times, np.full(3, 10 * times, np.int64)
            first, second = group.native_allreduce_start(span), group.native_allreduce_start(more)
            while not first.test():
                pass
            second.wait(DEADLINE_S)
            found.append((span.tolist(), more.tolist()))
        return found

    total = sum(range(1, size + 1))
    wanted = [([total * times] * 2, [10 * times * size] * 3) for times in range(1, 5)]
    assert in_group(size + 2, tuple(range(1, size + 1)), body) == [None, *[wanted] * size, None]


def test_values_of_any_length_are_gathered_one_gather_after_another():
    def body(group):
        group.barrier()
        return [group.gather_json({"rank": group.rank, "text": "ä" * length * group.rank}) for length in (0, 1, 1000)]

    wanted = [[{"rank": rank, "text": "ä" * length * rank} for rank in range(3)] for length in (0, 1, 1000)]
    assert in_group(4, (0, 1, 3), body) == [wanted, wanted, None, wanted]


def test_a_barrier_lets_nobody_through_before_the_last_has_come():
    come = []

    def body(group):
        for _ in range(20):
            come.append(group.rank)
            group.barrier()
            counts = [come.count(rank) for rank in range(3)]
            assert min(counts) >= come.count(group.rank)
            group.barrier()

    in_group(4, (1, 2, 3), body)
    assert len(come) == 60


def test_bytes_between_nodes_are_counted_by_the_world_too():
    """Nodes of ranks 0 and 1, 2 and 3."""

    def body(t):
        group = t.group((1, 2))
        if group is not None:
            prepare, span = (group.sends, group.recvs)[group.rank], np.zeros(5)
            handle = prepare([(1 - group.rank, span)], 0)
            handle.start()
            handle.wait(DEADLINE_S)
        return t.links.between_bytes, group and group.links.between_bytes

    assert LoopbackWorld(4, nodes=2).run(body) == [(0, None), (40, 40), (0, 0), (0, None)]


def test_a_world_closes_its_lasting_groups():
    def body(t):
        group, ends = t.lasting_group((0, 2)), []
        if group is not None:
            group.before_closing.append(lambda: ends.append(t.rank))
        t.close()
        return ends

    assert LoopbackWorld(3).run(body) == [[0], [], [2]]
