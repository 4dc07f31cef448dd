"""What a rank's messages carry to other nodes."""

import numpy as np

from tests.loopback.world import LoopbackWorld


def test_messages_to_other_nodes_are_counted_when_they_are_started():
    def body(t):
        span, into = np.zeros(6, "f4"), [np.zeros(6, "f4") for _ in range(t.size)]
        others = [rank for rank in range(t.size) if rank != t.rank]
        recvs = t.recvs([(rank, into[rank]) for rank in others], 0)
        sends = t.sends([(rank, span) for rank in others], 0)
        before = t.links.between_bytes
        for _ in range(3):
            recvs.start()
            sends.start()
            for handle in (recvs, sends):
                handle.wait(10)
        return before, t.links.between_bytes

    # Nodes of 2 ranks and of 1: 24 bytes to each rank of the other, three times.
    assert LoopbackWorld(3, nodes=[0, 0, 1]).run(body) == [(0, 72), (0, 72), (0, 144)]
    assert LoopbackWorld(2).run(body) == [(0, 0), (0, 0)]
