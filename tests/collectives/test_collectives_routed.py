"""In shared memory within nodes, by messages between them: on threads that pose as nodes."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.allreduce.wire_formats import make_wire
from ringtrain.collectives.execution import routed
from ringtrain.collectives.execution.mapped import COMING
from ringtrain.collectives.execution.routed import slice_segments
from ringtrain.collectives.topology import topology_from_nodes
from ringtrain.errors import UsageError
from ringtrain.ops.reference import ReferenceOps
from ringtrain.transport.loopback import Loopback
from tests.collectives.executions import stalled
from tests.fakes.transports import Late
from tests.loopback.world import LoopbackWorld
from tests.says import says

LAYOUTS = [[0], [0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 2, 2]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 5, 997])
def test_every_slice_is_carried_once_on_every_node_in_pieces_of_its_own_tag(layout, count):
    topology, size = topology_from_nodes(layout), len(layout)
    cut = [list(slice_segments(topology, rank, count, least=10, tag=3)) for rank in range(size)]
    for ranks in topology.nodes:
        carried = sorted((p.start, p.stop) for rank in ranks for p in cut[rank])
        assert [start for start, _ in carried] == [0, *(stop for _, stop in carried)][: len(carried)]
        assert not carried or carried[-1][1] == count
    for rank in range(size):
        assert all(
            rank in p.carriers and [layout[c] for c in p.carriers] == [*range(len(topology.nodes))] for p in cut[rank]
        )
        assert all(p in cut[carrier] for p in cut[rank] for carrier in p.carriers)
        for other in range(size):
            tags = Counter(p.tag for p in cut[rank] if other in p.carriers)
            assert not tags or max(tags.values()) == 1
    assert not {p.tag for each in cut for p in each} & {
        p.tag for rank in range(size) for p in slice_segments(topology, rank, count, least=10, tag=4)
    }


def test_pieces_are_few_and_not_small():
    topology = topology_from_nodes([0, 0, 1, 1])
    assert len(list(slice_segments(topology, 0, 1600, least=10, tag=0))) == routed.SEGMENTS
    assert [p.stop - p.start for p in slice_segments(topology, 0, 50, least=10, tag=0)] == [10, 10, 5]
    assert list(slice_segments(topology, 0, 0, least=10, tag=0)) == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("algorithm", ["routed", "routed:sliced", "routed:butterfly"])
def test_sums_are_exact_and_replicas_equal(layout, algorithm, monkeypatch):
    monkeypatch.setattr("ringtrain.collectives.shared_memory.LEAST_BYTES", 64)
    counts, size = [0, 1, len(layout), 997], len(layout)

    def body(t):
        whole = t.allocate(sum(counts), "f8")
        ends = np.cumsum([0, *counts])
        parts = [whole[a:b] for a, b in itertools.pairwise(ends)]
        runs = [make_allreduce(t, part, algorithm, np.add, tag=tag) for tag, part in enumerate(parts)]
        for turn in range(3):
            whole[:] = (np.arange(whole.size) % 251 + t.rank) * (turn + 1)
            for run in runs:
                run.start()
            for run in runs:
                run.wait(20.0)
            assert (whole == (turn + 1) * (size * (np.arange(whole.size) % 251) + math.comb(size, 2))).all()
        whole[:] = np.random.default_rng(t.rank).standard_normal(whole.size)
        for run in runs:
            run.run(20.0)
        assert {run.algorithm for run in runs} == {"routed" if max(layout) else "mapped"}
        return whole.tobytes()

    assert len(set(LoopbackWorld(size, layout).run(body))) == 1


def test_messages_that_end_late_change_nothing(monkeypatch):
    """Pieces come back in any order, while others begin."""
    monkeypatch.setattr("ringtrain.collectives.shared_memory.LEAST_BYTES", 64)

    def body(t):
        rng = random.Random(t.rank)
        sends, recvs = t.sends, t.recvs
        t.sends = lambda moves, tag: Late(sends(moves, tag), rng, 7)
        t.recvs = lambda moves, tag: Late(recvs(moves, tag), rng, 7)
        buffer = t.allocate(1000, "f8")
        run = make_allreduce(t, buffer, "routed", np.add, segment_bytes=128)
        for turn in range(20):
            buffer[:] = np.arange(1000) * (t.rank + turn)
            run.run(20.0)
            assert (buffer == np.arange(1000) * (6 + 4 * turn)).all()

    LoopbackWorld(4, [0, 1, 0, 1]).run(body)


def test_moves_are_those_of_this_run(monkeypatch):
    """Whoever looks for the rank that is behind must not find it ahead, by what it did the time before."""
    monkeypatch.setattr("ringtrain.collectives.shared_memory.LEAST_BYTES", 64)

    def body(t):
        run = make_allreduce(t, t.allocate(1000, "f8"), "routed", np.add)
        run.run(20.0)
        t.barrier()
        if t.rank != 3:
            run.start()
        began = run.moved
        t.barrier()
        if t.rank == 3:
            run.start()
        run.wait(20.0)
        return began

    assert LoopbackWorld(4, [0, 0, 1, 1]).run(body)[2] == COMING  # it waits for rank 3


def test_bytes_are_those_of_the_outer_schedule():
    """A node of two ranks sends 2(m - 1)/m · n, whatever its ranks; within it nothing is sent."""
    sent = LoopbackWorld(4, 2).run(lambda t: make_allreduce(t, t.allocate(1200, "f4"), "routed", np.add).bytes_sent)
    assert sent == [2400] * 4


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("outer", ["ring", "sliced", "butterfly"])
def test_messages_between_nodes_are_packed_and_replicas_stay_equal(name, outer):
    wire, layout = make_wire(name, ReferenceOps("float32")), [0, 0, 1, 1, 1, 2]

    def body(t):
        buffer = t.allocate(1001, "f4")
        plain = make_allreduce(t, buffer, f"routed:{outer}", np.add)
        run = make_allreduce(t, buffer, f"routed:{outer}", np.add, wire=wire)
        buffer[:] = np.random.default_rng(t.rank).standard_normal(1001)
        run.run(20.0)
        assert 2 * run.bytes_sent == plain.bytes_sent
        return buffer.tobytes()

    (bits,) = set(LoopbackWorld(6, layout).run(body))
    got, exact = np.frombuffer(bits, "f4"), sum(np.random.default_rng(r).standard_normal(1001) for r in range(6))
    assert 1e-4 < np.abs(got - exact).max() < 0.05  # rounded, and no more than that
    packed, again = np.empty(1001, wire.dtype), np.empty(1001, "f4")
    wire.pack(got, packed)
    wire.unpack(packed, again)
    assert again.tobytes() == bits  # numbers of the wire, on their owners too


def test_no_wire_without_messages_or_owners():
    wire = make_wire("bfloat16", ReferenceOps("float32"))
    for name in ("mapped", "routed:recursive-doubling"):
        with pytest.raises(UsageError, match=says(f"{name.removeprefix('routed:')!r}")):
            make_allreduce(Loopback(), np.zeros(3, "f4"), name, np.add, wire=wire)


@pytest.mark.timing
def test_who_is_awaited():
    def body(t):
        run = make_allreduce(t, t.allocate(900, "f4"), "routed", np.add)
        return stalled(t, run, says("routed", "all-reduce"), absent=3)

    first, _, neighbour, _ = LoopbackWorld(4, 2).run(body)
    assert neighbour == says("rank 3", "routed", "all-reduce", 2)
    assert first == says(0, 1, "rank 2", "rank 0 in ring")
