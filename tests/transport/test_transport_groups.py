"""Groups: some ranks of a world, with numbers and messages of their own; what they have of their world."""

import numpy as np

from tests.loopback.world import LoopbackWorld

DEADLINE_S = 20.0


def test_bytes_between_nodes_are_counted_by_the_world_too_when_messages_are_started():
    """Nodes of ranks 0 and 1, 2 and 3: two messages of 40 bytes, to the other rank of the group."""

    def body(t):
        group = t.group((1, 2))
        if group is not None:
            prepare, span = (group.sends, group.recvs)[group.rank], np.full(5, t.rank)
            handle = prepare([(1 - group.rank, span)], 0)
            assert not t.links.between_bytes
            for _ in range(2):
                handle.start()
                handle.wait(DEADLINE_S)
            assert (span == 1).all()
        return t.links.between_bytes, group and group.links.between_bytes

    assert LoopbackWorld(4, nodes=2).run(body) == [(0, None), (80, 80), (0, 0), (0, None)]
    assert LoopbackWorld(4).run(body) == [(0, None), (0, 0), (0, 0), (0, None)]


def test_a_world_closes_its_lasting_groups():
    def body(t):
        group, ends = t.lasting_group((0, 2)), []
        if group is not None:
            group.before_closing.append(lambda: ends.append(t.rank))
        t.close()
        return ends

    assert LoopbackWorld(3).run(body) == [[0], [], [2]]
