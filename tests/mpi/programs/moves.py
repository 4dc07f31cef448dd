"""Under mpirun at any number of ranks: every call of the transport, every schedule, and the all-reduce strategy.
tests/transport calls those of ANYWHERE over threads."""

import os
from itertools import chain, pairwise

import numpy as np

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.allreduce.wire_formats import TYPES, make_wire
from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.topology import even
from ringtrain.ops.cpu import CpuOps
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.world import connect

DEADLINE_S = 30.0


def add(a, b, y):
    np.add(a, b, out=y)


def run(*handles):
    """Start them in this order, and wait for them in the other."""
    for handle in handles:
        handle.start()
    for handle in reversed(handles):
        handle.wait(DEADLINE_S)


def total(t, share):
    """The sum of all ranks' ``share`` + rank."""
    return t.size * share + t.size * (t.size - 1) // 2


def knows_its_place(t):
    from mpi4py import MPI  # after connect, which prepares the environment for it

    assert (t.rank, t.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    places = t.gather_json([t.node, t.nodes, t.local_rank, t.local_size])
    assert sorted(place[2] for place in places) == list(range(t.size))  # one machine
    assert all(place[:2] == [0, 1] and place[3] == t.size for place in places)
    assert "MPI" in t.describe()


def gathers_and_broadcasts(t):
    want = [{"rank": rank, "text": "é" * rank} for rank in range(t.size)]
    assert t.gather_json({"rank": t.rank, "text": "é" * t.rank}) == want
    span = np.full((3, 5), t.rank, "f4")
    t.broadcast(span, root=t.size - 1)
    assert (span == t.size - 1).all()


def native(t):
    share = np.arange(7.0)
    for op, want in (("sum", total(t, share)), ("max", share + t.size - 1), ("min", share)):
        span = share + t.rank
        t.native_allreduce(span, op)
        assert (span == want).all()
    span = np.full(7, t.rank, "f4")
    handle = t.native_allreduce_start(span)
    handle.wait(DEADLINE_S)
    assert handle.test() and (span == t.size * (t.size - 1) / 2).all()


def moves_again_and_again(t):
    """To the right, in two tags that are started in different orders at the two ends."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    out, into = np.zeros((2, 33), "f4"), np.zeros((2, 33), "f4")
    sends = [t.sends([(right, out[tag])], tag) for tag in (0, 1)]
    recvs = [t.recvs([(left, into[tag])], tag) for tag in (0, 1)]
    assert all(handle.test() for handle in sends + recvs)
    for turn in range(4):
        out[:] = 100 * turn + t.rank
        out[1] += 0.5
        run(*recvs[::-1], *sends)
        assert (into[0] == 100 * turn + left).all() and (into[1] == into[0] + 0.5).all()


def cuts_messages(t):
    """Nine bytes a message, over spans that do not divide by nine; several moves in one handle; and nothing at all."""
    from mpi4py import MPI

    from ringtrain.transport.mpi.messages import Messages

    small = Messages(MPI.COMM_WORLD, message_bytes=9)
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    out, into = np.arange(50.0) + t.rank, np.zeros(50)
    parts = (slice(20), slice(20, 21), slice(21, None), slice(0))
    send, recv = small.sends([(right, out[p]) for p in parts], 3), small.recvs([(left, into[p]) for p in parts], 3)
    run(recv, send)
    assert (into == np.arange(50.0) + left).all()
    whole = np.arange(40.0) if t.rank == 0 else np.zeros(40)
    small.broadcast(whole)
    assert (whole == np.arange(40.0)).all()
    nothing = small.sends([], 0)
    nothing.start()
    assert nothing.test()
    small.close()


def sums_are_exact(t):
    """Several buckets in flight at once, every length of interest, two types; as if on two nodes, where it matters."""
    nodes = even(t.size, min(t.size, 2))
    for name in SCHEDULES:
        for dtype in ("f4", "f8"):
            counts = sorted({0, 1, t.size - 1, t.size, t.size + 1, 101, 10007})
            buffers = [np.zeros(count, dtype) for count in counts]
            schedule = make_schedule(name, nodes)
            runs = [Execution(schedule, t, b, add, tag, segment_bytes=2048) for tag, b in enumerate(buffers)]
            for turn in range(1, 4):
                assert_exact(t, buffers, runs, turn, 251, name)


def assert_exact(t, buffers, runs, turn, modulus, name):
    """Sums of small whole numbers, of several buckets in flight."""
    for buffer in buffers:
        buffer[:] = (np.arange(buffer.size) % modulus + t.rank) * turn
    run(*runs)
    for buffer in buffers:
        assert (buffer == turn * total(t, np.arange(buffer.size) % modulus)).all(), (name, buffer.size)


def sums_in_shared_memory_are_exact(t):
    """Several buckets in flight, every length of interest; and each rank's memory is the others' to read and write."""
    counts = sorted({0, 1, t.size - 1, t.size, t.size + 1, 101, 300_007})
    whole = t.allocate(sum(counts), "f4")
    assert (len(t.peer_views(whole)) == t.size and t.peer_views(whole.copy()) is None) or t.size == 1
    ends = np.cumsum([0, *counts])
    for name in ("mapped", "routed"):
        runs = [make_allreduce(t, whole[a:b], name, add, tag=tag) for tag, (a, b) in enumerate(pairwise(ends))]
        for turn in range(1, 20):
            assert_exact(t, [whole], runs, turn, 251, name)


def a_wire_that_rounds(t):
    """The compiled kernels, several buckets in flight, again and again: exact sums stay exact, others agree."""
    nodes, ops = even(t.size, min(t.size, 2)), CpuOps("float32")
    for name in [name for name in SCHEDULES if name != "recursive-doubling"]:
        schedule = make_schedule(name, nodes, rounded=True)
        for wire in (make_wire(kind, ops) for kind in TYPES):
            buffers = [np.zeros(count, "f4") for count in (1, t.size + 1, 10007)]
            runs = [Execution(schedule, t, b, add, tag, 2048, wire=wire) for tag, b in enumerate(buffers)]
            for turn in (1, 2):
                assert_exact(t, buffers, runs, turn, 11, name)
            assert 2 * runs[-1].bytes_sent == Execution(schedule, t, buffers[-1], add, 3, 2048).bytes_sent
            random = np.random.default_rng(t.rank).standard_normal(100_003).astype("f4")
            run(Execution(schedule, t, random, add, 4, 1 << 14, wire=wire))
            first = random.copy()
            t.broadcast(first)
            assert first.tobytes() == random.tobytes(), name


def shares_memory_on_the_node(t):
    window = t.node_window(1000)
    assert window.dtype == np.uint8 and window.shape == (1000,) and not window.any()
    t.node_barrier()
    window[t.local_rank] = t.rank + 1
    t.node_barrier()
    assert sorted(window[: t.size]) == list(range(1, t.size + 1))
    assert t.node_window(0).shape == (0,)
    t.node_barrier()


def tallies(t):
    """Each ticket goes to one rank, and no addition is lost, though rank 0 does nothing for it."""
    tally = t.counters(4)
    tickets = [tally.take(0, 1) for _ in range(50)]
    tally.add(2, np.array([1.0, t.rank]))
    assert sorted(chain(*t.gather_json(tickets))) == list(range(50 * t.size))
    np.testing.assert_array_equal(tally.read(), [50 * t.size, 0, t.size, t.size * (t.size - 1) / 2])
    tally.clear()
    assert not tally.read().any()


def gives_the_core_away_where_it_is_shared(t):
    """The awaited rank may need the very core that a wait would spin on."""
    from mpi4py import MPI

    from ringtrain.transport.mpi.messages import Messages

    cores, seen = os.sched_getaffinity(0), []
    one = sorted(cores)[:1]
    for allowed in (one, cores):
        os.sched_setaffinity(0, allowed)
        other = Messages(MPI.COMM_WORLD)
        seen.append(other.patience.spin_s > 0)
        other.close()
    assert seen == [t.size == 1, t.size <= len(cores)]


def counts_what_leaves_the_node(t):
    """As it is sent: the other ranks are of other nodes for this."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    neighbours, t.links = t.links, LinkTraffic([])
    send, recv = t.sends([(right, np.ones(50, "f4"))], 4), t.recvs([(left, np.zeros(50, "f4"))], 4)
    for times in (1, 2):
        run(recv, send)
        assert t.links.between_bytes == 200 * times
    t.links = neighbours


ANYWHERE = [gathers_and_broadcasts, native, shares_memory_on_the_node, tallies]
CHECKS = [
    gives_the_core_away_where_it_is_shared,
    counts_what_leaves_the_node,
    knows_its_place,
    moves_again_and_again,
    cuts_messages,
    sums_are_exact,
    sums_in_shared_memory_are_exact,
    a_wire_that_rounds,
    *ANYWHERE,
]
if __name__ == "__main__":
    transport = connect()
    for check in CHECKS:
        check(transport)
        transport.barrier()
    rank = transport.rank
    transport.close()
    if rank == 0:
        print(f"{len(CHECKS)} checks passed")
