"""The communicator on a loopback world: what it returns, in whose memory, and how often it prepares."""

import re

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.allreduce.tuning_table import TuningRow
from ringtrain.api import plan
from ringtrain.errors import UsageError
from tests.api.communicators import on_ranks, together, tuning_file
from tests.loopback.world import LoopbackWorld, ThreadHandle, ThreadTransport
from tests.says import says


def sizes(prepared):
    """The elements of all reductions that are prepared."""
    return sorted(span.size for _, span in prepared)


@on_ranks(3)
def test_a_mean_is_divided_once(communicator):
    array = np.array([1, 2, communicator.rank], np.float32)
    for _ in range(2):
        assert communicator.allreduce(array, "mean").tolist() == [1, 2, 1]
    ours = communicator.empty(3)
    ours[:] = array
    assert communicator.allreduce(ours, "mean", out=ours) is ours and ours.tolist() == [1, 2, 1]


@on_ranks(2)
def test_a_wire_that_rounds(communicator):
    array = np.full(5, 1.001, np.float32)
    assert (communicator.allreduce(array, "mean") == np.float32(1.001)).all()
    assert (communicator.allreduce(array, "mean", wire="bfloat16") == 1).all()
    reduction = communicator.prepare(array, wire="float16")
    reduction.start()
    assert (reduction.wait() == np.float32(np.float16(1.001)) * 2).all()
    assert reduction.algorithm == "auto:sliced"


def test_a_tuning_file_is_gone_by(tmp_path):
    """Of this machine, where the star was measured and nothing else."""
    path = tuning_file(tmp_path / "tuning.json", TuningRow("star", "float64", "sum", 40, 1e-6, True))

    def body(communicator):
        reduction = communicator.prepare(np.ones(5))
        reduction.start()
        assert reduction.wait().tolist() == [2] * 5
        return reduction.algorithm, reduction.why

    why = says("measured", "1 µs") + says("1", 2)
    assert together(2, body, tuning=path) == [("auto:star", why)] * 2


@on_ranks(2)
def test_the_array_stays_as_it_is_and_out_takes_the_result_and_scalars_and_empty_arrays_keep_their_shape(communicator):
    arguments, out = np.ones((2, 3)), np.zeros((2, 3))
    assert communicator.allreduce(arguments, out=out) is out
    assert (arguments == 1).all() and (out == 2).all()
    assert communicator.allreduce(arguments, out=arguments) is arguments and (arguments == 2).all()
    number, point = communicator.allreduce(np.float64(2.5)), communicator.allreduce(np.array(3))
    assert number == 5 and isinstance(number, np.float64) and point.shape == () and point == 6
    nothing = communicator.allreduce(np.zeros((3, 0, 2), np.int32))
    assert nothing.shape == (3, 0, 2) and nothing.dtype == np.int32


@pytest.mark.parametrize("count", [9, 250])
@on_ranks(3)
def test_out_may_overlap_the_array(communicator, small_pieces, count):
    want = np.arange(count) * 3
    memory = np.arange(float(count))
    communicator.allreduce(memory[:-1], out=memory[1:])
    assert memory.tolist() == [0, *want[:-1]]
    memory[:] = np.arange(count)
    communicator.allreduce(memory[::-1], out=memory)
    assert memory.tolist() == want[::-1].tolist()
    square = np.arange(float(count * count)).reshape(count, count)
    communicator.allreduce(square.T, out=square)
    assert (square == np.arange(count * count).reshape(count, count).T * 3).all()


def test_large_arrays_pass_in_pieces(small_pieces, prepared):
    def body(communicator):
        for count in (99, 100, 101, 200, 250):
            array = np.arange(count) + communicator.rank
            assert (communicator.allreduce(array) == np.arange(count) * 2 + 1).all()

    together(2, body, algorithm="sliced")
    assert sizes(prepared) == sorted([99, 100, 100, 1, 100, 100, 50] * 2)


def test_a_reduction_is_prepared_once(prepared):
    def body(communicator):
        for dtype in ("f4", "f8", "f4", "f4"):
            communicator.allreduce(np.ones(7, dtype))
            communicator.allreduce(np.ones(7, dtype), algorithm="star")
            communicator.allreduce(np.ones(7, dtype), "max")

    together(2, body)
    assert len(prepared) == 2 * 2  # the star's: the others are streamed


@pytest.fixture
def freed(monkeypatch):
    """The handles that are given back."""
    handles = []
    monkeypatch.setattr(ThreadHandle, "free", lambda handle: handles.append(handle))
    return handles


def test_those_not_used_for_longest_make_room(monkeypatch, prepared, freed):
    monkeypatch.setattr(plan, "KEPT", 3)

    def body(communicator):
        for count in (1, 2, 3, 1, 4, 1, 2, 4):  # 4 takes the place of 2, and 2 that of 3
            assert (communicator.allreduce(np.ones(count)) == 2).all()
        return sorted(communicator._builder._tags)

    assert together(2, body, algorithm="ring") == [[0, 1, 2]] * 2
    assert sizes(prepared) == sorted([1, 2, 3, 4, 2] * 2)
    assert len(freed) == len(set(freed)) >= 2 * 5 * 2  # each has a send and a receive at least; all are given back


def test_a_guard_changes_nothing(freed):
    def body(communicator):
        for algorithm in ("ring", "auto", "mapped"):
            assert communicator.allreduce(np.ones(5), algorithm=algorithm).tolist() == [3] * 5
        reduction = communicator.prepare(np.ones(5), algorithm="star")
        reduction.start()
        assert reduction.wait().tolist() == [3] * 5
        return reduction.algorithm

    assert together(3, body, check_collectives=True) == ["star"] * 3
    assert freed


@pytest.mark.parametrize("algorithm", ["routed", "hierarchical", "mapped"])
def test_all_that_was_prepared_is_given_back(monkeypatch, freed, algorithm):
    prepared, sends = [], ThreadTransport.sends

    def noted(self, moves, tag):
        prepared.append(sends(self, moves, tag))
        return prepared[-1]

    monkeypatch.setattr(ThreadTransport, "sends", noted)

    def body(transport):
        with Communicator(transport, algorithm, deadline_s=20.0) as communicator:
            assert (communicator.allreduce(np.ones(100)) == 4).all()

    LoopbackWorld(4, nodes=1 if algorithm == "mapped" else 2).run(body)
    assert set(prepared) <= set(freed) and len(freed) == len(set(freed))
    assert bool(prepared) == (algorithm != "mapped")


def test_own_memory_is_reduced_where_it_lies(prepared):
    def body(communicator):
        first, second = communicator.empty(10), communicator.empty((4, 5), "int64")
        assert first.dtype == np.float32 and not first.any() and not second.any()
        part = second[1:3]
        part += communicator.rank + 1
        assert communicator.allreduce(part, out=part) is part and second.sum() == 3 * 10
        strided = second[:, ::2]
        communicator.allreduce(strided, out=strided)
        assert (second[:, ::2] == 2 * np.array([[0], [3], [3], [0]])).all() and (second[1, 1::2] == 3).all()
        first[:5] = 7
        communicator.allreduce(first[:5], out=first[5:])  # copied there, and reduced there
        assert first.tolist() == [7] * 5 + [14] * 5
        assert any(np.shares_memory(span, part) for _, span in prepared)
        swapped = communicator.empty(3).view(">f4")  # which is anybody's
        swapped[:] = [1, 2, 3]
        assert communicator.allreduce(swapped, out=swapped).tolist() == [2, 4, 6]
        assert communicator.empty(4, "bfloat16").dtype == np.uint16 and communicator.empty((), np.float16).shape == ()

    together(2, body)
    positions = [request.position for request, _ in prepared]
    assert sorted(positions) == sorted([(1, 40), (0, 20)] * 2)  # the strided one is streamed


def test_memory_that_exists_is_reduced_where_it_lies(prepared):
    def body(communicator):
        array = np.zeros(4000)
        assert communicator.register(array, "any")
        part = array[10:1000]
        for turn in range(2):
            part[:] = communicator.rank + turn
            assert communicator.allreduce(part, out=part, algorithm="mapped") is part
            assert (part == 3 + 3 * turn).all() and not array[1000:].any()
        assert any(np.shares_memory(span, part) for _, span in prepared)
        reduction = communicator.prepare(array)
        reduction.start()
        with pytest.raises(UsageError, match=says("unregister")):
            communicator.unregister(array)
        reduction.wait()
        communicator.unregister(array)
        with pytest.raises(UsageError, match=says(32_000, "registered", "register")):
            communicator.unregister(array)
        part[:] = 1
        assert (communicator.allreduce(part, out=part) == 3).all()
        assert communicator.register(array, "any")  # with another number
        assert communicator._memory.position(array) == (1, 0)

    together(3, body)
    assert len(prepared) == 3 * 2  # in place, and persistent; elsewhere it is streamed


@pytest.mark.parametrize("shares", [True, False])
def test_memory_that_one_rank_cannot_share_is_not_registered(shares):
    """Nor on the nodes that could."""
    frozen = np.zeros(100)
    frozen.flags.writeable = False

    def body(t):
        with Communicator(t) as communicator:
            for odd in (np.zeros(99), np.zeros((20, 10))[:, ::2], frozen, np.zeros(1)):
                array = odd if t.rank == 3 else np.zeros(100)
                assert not communicator.register(array, "any") and communicator._memory.position(array) is None
                assert t.size == 1 or t.peer_views(array) is None
            return communicator.register(np.zeros(100), "any")

    assert LoopbackWorld(4, nodes=2, shares=shares).run(body) == [shares] * 4


@on_ranks(3)
def test_a_prepared_reduction_tells_its_algorithm_and_why(communicator):
    theirs, ours = np.zeros((2, 3), np.float32), communicator.empty((2, 3))
    reductions = [communicator.prepare(theirs, "mean"), communicator.prepare(ours, "max", algorithm="star")]
    assert [reduction.algorithm for reduction in reductions] == ["auto:mapped", "star"]
    assert re.match(says("the", "default"), reductions[0].why) and reductions[1].why == ""


@on_ranks(2)
def test_a_prepared_reduction_of_strided_and_of_empty_arrays_and_others_meanwhile(communicator):
    grid = np.ones((3, 4))
    for array in (grid[:, 1], grid[:0], np.array(1.0)):
        reduction = communicator.prepare(array)
        reduction.start()
        assert communicator.allreduce(np.ones(5)).tolist() == [2] * 5
        assert reduction.wait() is array and (array == 2).all()
    assert grid.sum() == 12 + 3


def test_after_an_error_closing_waits_for_nobody():
    def body(transport):
        with Communicator(transport) as communicator:
            communicator.allreduce(np.ones(3))
            if transport.rank == 1:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LoopbackWorld(2, meet_s=5.0).run(body)


def test_a_world_of_one_needs_nothing(alone):
    assert alone.allreduce(np.arange(3), "max").tolist() == [0, 1, 2]
    alone.close()
    alone.close()
    with pytest.raises(UsageError, match=says("communicator", "closed")):
        alone.allreduce(np.arange(3))
