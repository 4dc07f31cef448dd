"""All-reduces by name: which there are, which can run where, and what is done where one cannot."""

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS, check_algorithm, make_allreduce, parse_algorithms
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.collectives.execution.execute import BETWEEN_BYTES, SEGMENT_BYTES
from ringtrain.collectives.shared_memory import Unavailable, or_nearest_over_messages
from ringtrain.errors import UsageError
from tests.fakes.transports import recording
from tests.loopback.world import LoopbackWorld
from tests.says import says


@pytest.mark.parametrize("name", [*ALGORITHMS, "routed:sliced", "hierarchical:sliced:tree"])
def test_every_name_sums(name):
    def body(t):
        buffer = t.allocate(40, "f8")
        run = make_allreduce(t, buffer, name, np.add)
        for turn in (1, 2):
            buffer[:] = turn * np.arange(40.0) + t.rank
            run.start()
            run.wait(20.0)
            assert run.test() and (buffer == 3 * turn * np.arange(40) + 3).all()
        return run.algorithm

    (algorithm,) = set(LoopbackWorld(3).run(body))
    assert algorithm == ("mapped" if name.startswith("routed") else name)  # on one node there is nothing between


@pytest.mark.parametrize(("nodes", "most"), [(1, SEGMENT_BYTES), (2, BETWEEN_BYTES)])
def test_messages_between_nodes_are_short_enough_to_be_sent_at_once(nodes, most):
    def body(t):
        seen, log = recording(t)
        run = make_allreduce(seen, np.ones(200_000, "f4"), "ring", np.add)
        run.start()
        run.wait(20.0)
        return max(4 * elements for _, _, elements, _ in log)

    for longest in LoopbackWorld(2, nodes=nodes).run(body):
        assert 0.5 * most < longest <= most


@pytest.mark.parametrize(
    "name, message",
    [
        ("atuo", says("--plugin", "'atuo'", "did you mean 'auto'?", "mpi")),
        ("auto:ring", says("'auto:ring'")),
        ("rings", says("--plugin", "'rings'", "did you mean 'ring'?")),
        ("routed:stars", says("'routed:stars'", "did you mean 'star'?")),
        ("mapped:8x4", says("'mapped:8x4'", "give mapped")),
        ("stream:plain", says("'stream:plain'", "give stream")),
        ("hierarchical-leader", says("'hierarchical-leader'", "hierarchical:tree:ring")),
        ("routed:", says("'routed:'", "known: butterfly")),
    ],
)
def test_a_name_that_is_not_there(name, message):
    with pytest.raises(UsageError, match=message):
        check_algorithm(name)
    for known in ("auto", "mpi", "ring", "hierarchical:ring:tree"):
        check_algorithm(known)


def test_lists_of_names():
    assert parse_algorithms("all") == list(ALGORITHMS)
    assert parse_algorithms("ring, mpi,ring,routed:tree") == ["ring", "mpi", "routed:tree"]
    with pytest.raises(UsageError, match=says("--plugin", "'mappe'") + "did you mean 'mapped'"):
        parse_algorithms("ring,mappe")


def refused(world, name, private=False):
    def body(t):
        with pytest.raises(Unavailable) as error:
            make_allreduce(t, np.zeros(9) if private else t.allocate(9, "f8"), name, np.add)
        return str(error.value)

    (message,) = set(world.run(body))
    return message


def test_a_type_that_mapped_does_not_add_is_refused_and_auto_takes_another():
    def body(t):
        buffer = t.allocate(100_000, "u4")
        with pytest.raises(Unavailable) as error:
            make_allreduce(t, buffer, "mapped", np.add)
        run = make_allreduce(t, buffer, "auto", np.add)
        buffer[:] = t.rank + 1
        run.run(20.0)
        return str(error.value), run.algorithm, set(buffer.tolist())

    why = says(", ".join(TYPES), "uint32")
    refusal = says("mapped", why)
    assert LoopbackWorld(2).run(body) == [(refusal, "auto:sliced", {3})] * 2


def test_what_cannot_run_here_is_refused_with_the_reason_and_messages_stand_in():
    nodes = says(2, "routed")
    assert refused(LoopbackWorld(4, 2), "mapped") == says("mapped", nodes)
    private = says("buffer", "share", "ranks 0, 1")
    assert refused(LoopbackWorld(2), "mapped", private=True) == says("mapped", private)
    assert refused(LoopbackWorld(2, shares=False), "routed:tree") == says("routed:tree", private)
    assert refused(LoopbackWorld(3, [0, 0, 1], shares=False), "routed") == says("routed", private)

    def body(t):
        buffer = t.allocate(9, "f8")
        return [or_nearest_over_messages(t, buffer, name, [0]) for name in ("mapped", "routed:star", "tree")]

    mapped, routed, tree = LoopbackWorld(2, shares=False).run(body)[1]
    assert mapped[0] == "sliced" and routed[0] == "hierarchical" and tree == ("tree", None)
    private = says("buffer", "share", "ranks 0, 1")
    assert mapped[1] == says("mapped", private, "sliced")
    assert LoopbackWorld(2).run(body)[0] == [("mapped", None), ("routed:star", None), ("tree", None)]


def without_counters(t, tags):
    """As where shared memory has had room for the buffer, and has none left for the counters of these tags."""
    lane = t.signal_counter
    t.signal_counter = lambda tag: None if tag in tags else lane(tag)
    return t.allocate(9, "f8")


def test_counters_are_needed_too_but_by_streams():
    world = LoopbackWorld(3, [0, 1, 1])
    lacking = says("shared", "counters", "ranks 1, 2")

    def body(t):
        buffer = without_counters(t, [64] if t.node else [])
        with pytest.raises(Unavailable) as error:
            make_allreduce(t, buffer, "routed", np.add, tag=64)
        assert make_allreduce(t, buffer, "routed", np.add, tag=63).algorithm == "routed"
        instead = or_nearest_over_messages(t, buffer, "routed", range(65))
        assert or_nearest_over_messages(t, buffer, "routed", range(64)) == ("routed", None)
        return str(error.value), *instead

    ((refusal, instead, note),) = set(world.run(body))
    assert refusal == says("routed", lacking) and note == says("routed", lacking, "hierarchical")
    assert instead == "hierarchical"

    def body(t):
        without_counters(t, [7])
        return make_allreduce(t, t.allocate(9000, "f8"), "auto", np.add, tag=7).algorithm

    assert set(LoopbackWorld(2).run(body)) == {"auto:stream"}
    assert set(LoopbackWorld(2, shares=False).run(body)) == {"auto:sliced"}
