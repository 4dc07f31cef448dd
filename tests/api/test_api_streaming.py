"""Arrays outside the communicator's memory, which are streamed; and the same array again."""

import gc
import re
import warnings
import weakref

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.api.streaming import SameArrays
from ringtrain.collectives.execution.streamed import Streamed
from ringtrain.errors import MismatchError, UsageError
from tests.api.communicators import on_ranks, together
from tests.loopback.world import LoopbackWorld
from tests.says import says


def streams(communicator):
    """How many streams are prepared."""
    return len(communicator._stream_plans._kept)


def kept(communicator, array, op="sum"):
    """The short way of this array, if there is one."""
    return communicator._same.find(array, op)


@pytest.mark.parametrize("op", ["sum", "mean"])
@on_ranks(3)
def test_arrays_of_any_layout(communicator, op):
    share, by = np.arange(24.0) + communicator.rank, 3 if op == "mean" else 1
    want = (3 * np.arange(24.0) + 3) / by
    raw = np.zeros(24 * 8 + 1, np.uint8)[1:].view(np.float64)
    for array in (share.copy(), np.zeros(48)[::2], np.zeros(24, ">f8"), np.zeros(48, ">f8")[::2], raw, raw[::-1]):
        array[:] = share
        assert communicator.allreduce(array, op).tolist() == want.tolist()
        assert communicator.allreduce(array, op, out=array) is array and array.tolist() == want.tolist()
    square = np.asfortranarray(share.reshape(4, 6))
    assert communicator.allreduce(square, op).tolist() == want.reshape(4, 6).tolist()
    assert streams(communicator)
    assert not communicator._plans._kept and communicator._memory._staging is None


def test_where_nothing_is_streamed():
    """Over messages between nodes, and without shared memory; a stream that is asked for by name is refused."""

    def body(communicator):
        for count in (5, 0):
            assert (communicator.allreduce(np.ones(count)) == 2).all()
        with pytest.raises(UsageError) as error:
            communicator.allreduce(np.ones(5), algorithm="stream")
        assert not streams(communicator)
        return str(error.value)

    why = says(2, "works", "within")
    assert together(2, body, nodes=2) == [says("stream", why)] * 2
    for message in together(2, body, shares=False):
        assert re.match(says("stream"), message)


@on_ranks(2)
def test_the_same_array_again_takes_the_short_way(communicator):
    array = np.zeros(1000, np.float32)
    for turn in range(4):
        array[:] = communicator.rank + turn
        assert communicator.allreduce(array, "mean", out=array) is array and (array == turn + 0.5).all()
        assert (kept(communicator, array, "mean") is not None) == (turn > 0)
    for other in ({"op": "sum"}, {"op": "mean", "algorithm": "star"}, {"op": "mean", "wire": "bfloat16"}):
        array[:] = 3
        communicator.allreduce(array, out=array, **other)
        assert (array == (6 if other["op"] == "sum" else 3)).all()
    assert kept(communicator, array) is None and kept(communicator, array.copy()) is None


@on_ranks(2)
def test_an_array_that_has_changed_or_has_another_shape_is_another_one(communicator):
    array = np.zeros(100, np.float32)
    for _ in range(2):
        communicator.allreduce(array, out=array)
    with pytest.raises(ValueError):
        array.resize(200, refcheck=False)
    array.dtype = np.int32
    array[:] = 1 << 24
    array += 1
    assert (communicator.allreduce(array, out=array) == (1 << 25) + 2).all()
    communicator.allreduce(array, out=array)
    array.flags.writeable = False
    with pytest.raises(UsageError, match=says("out")):
        communicator.allreduce(array, out=array)
    array = np.zeros((2, 3))
    for _ in range(3):
        communicator.allreduce(array, out=array)
    assert kept(communicator, array) is not None
    view = array.view()
    assert kept(communicator, view) is None
    with warnings.catch_warnings(action="ignore"):
        array.shape = (3, 2)
    assert kept(communicator, array) is None


@on_ranks(2)
def test_no_array_is_kept(communicator):
    """Neither by the short way nor by a plan: who frees it has its memory back."""
    array, other = np.ones(5000), np.ones(700)
    communicator.allreduce(other)
    for _ in range(3):
        communicator.allreduce(array, out=array)
    assert kept(communicator, array) is not None
    references = [weakref.ref(array), weakref.ref(other)]
    del array, other
    gc.collect()
    assert all(reference() is None for reference in references) and not communicator._same._kept


def test_ranks_may_take_the_short_way_or_not(monkeypatch):
    """One rank has the same array each time, the other a new one: they drop the same prepared all-reduces."""
    monkeypatch.setattr("ringtrain.api.plan.KEPT", 2)

    def body(communicator):
        same = np.ones(50)
        for turn in range(6):
            array = same if communicator.rank else np.ones(50)
            array[:] = 1
            assert (communicator.allreduce(array, out=array) == 2).all()
            assert (communicator.allreduce(np.ones(turn % 3 + 1), algorithm="ring") == 2).all()
        return sorted(communicator._builder._tags)

    first, second = together(2, body)
    assert first == second


@on_ranks(2)
def test_calls_in_flight_come_before_the_short_way(communicator):
    array, large = np.ones(64), np.full(300_000, 1.0)
    for _ in range(2):
        communicator.allreduce(array, out=array)
    array[:] = 1
    work = communicator.allreduce(large, out=large, async_op=True)
    assert communicator.allreduce(array, out=array) is array and (array == 2).all()
    assert work.wait() is large and (large == 2).all()


@on_ranks(3)
def test_a_prepared_stream_and_one_in_flight_have_one_queue(communicator):
    """Two threads move it: the caller's and the progress thread."""
    mine, theirs = np.full(100_000, 1.0), np.full(100_000, 2.0)
    reduction = communicator.prepare(mine, algorithm="stream")
    for turn in range(5):
        mine[:], theirs[:] = turn, 2
        reduction.start()
        work = communicator.allreduce(theirs, out=theirs, async_op=True)
        while not reduction.test():
            pass
        assert work.wait() is theirs and (mine == 3 * turn).all() and (theirs == 6).all()


def test_what_is_registered_is_no_longer_streamed(monkeypatch):
    def body(communicator):
        array = np.zeros(1000)
        for turn in range(4):
            if turn == 2:
                assert communicator.register(array, "any") and kept(communicator, array) is None
            array[:] = 1
            assert (communicator.allreduce(array, out=array) == 2).all()
        return len(communicator._plans._kept)

    assert together(2, body) == [1, 1]


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.usefixtures("timeless")
def test_different_arrays_are_named(checks):
    def body(communicator):
        communicator.allreduce(np.ones(3))
        with pytest.raises(MismatchError) as error:
            communicator.allreduce(np.ones(4 + communicator.rank))
        return str(error.value)

    calls = [says("chunks", "bytes", 4 + rank, "sum", "float64", 256 << 10) for rank in (0, 1)]
    for message in together(2, body, check_collectives=checks):
        assert (message == says("different", "calls", 0, 1, *calls)) != checks


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("known", ["array", "plan", "nothing"])
@pytest.mark.usefixtures("timeless")
def test_shapes_that_differ_are_named(known, checks):
    """As many elements, in the short way, in a known kind of call and in a new one."""

    def body(communicator):
        communicator.allreduce(np.ones(3))
        one, other = np.ones((2, 3)), np.ones((3, 2))
        for _ in range({"array": 3, "plan": 1, "nothing": 0}[known]):
            for array in (one, other):
                communicator.allreduce(array, out=array)
        array = (one, other)[communicator.rank]
        with pytest.raises(MismatchError) as error:
            communicator.allreduce(array, out=array)
        return str(error.value)

    for message in together(2, body, check_collectives=checks):
        assert says([2, 3]).matches(message) and says([3, 2]).matches(message)


@on_ranks(2)
def test_a_tensor_whose_memory_is_exchanged_is_another_one(communicator, torch):
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.ones(100, dtype=dtype)
        for _ in range(2):
            tensor.fill_(1)
            assert communicator.allreduce(tensor, out=tensor) is tensor
        assert isinstance(kept(communicator, tensor), Streamed) and (tensor == 2).all()
        tensor.data = torch.full((300,), 3.0, dtype=dtype)
        assert kept(communicator, tensor) is None
        assert (communicator.allreduce(tensor, out=tensor) == 6).all() and tensor.numel() == 300
        tensor.resize_(200)
        assert kept(communicator, tensor) is None


def test_a_tensor_of_which_the_host_has_a_copy_is_not_kept():
    """As one of a GPU: the copy is another one at each call, and is freed after it."""

    class Tensor:
        __module__, shape = "torch", (3,)

        def data_ptr(self):
            return 4096

    tensor, arrays = Tensor(), SameArrays()
    for _ in range(2):
        arrays.keep(tensor, np.ones(3), "sum", pytest.fail)
        assert arrays.find(tensor, "sum") is None


def test_one_that_is_dropped_and_not_closed_says_so_at_once():
    def body(transport):
        array = np.ones(20_000)
        communicators = [Communicator(transport.group([0, 1]), deadline_s=20.0) for _ in range(3)]
        for communicator in communicators:
            for _ in range(3):
                communicator.allreduce(array, out=array)  # the short way must not hold it
            communicator.allreduce(array, async_op=True).wait()
            communicator.barrier()
        communicators[1].close()
        communicators[2].__exit__(ValueError, ValueError(), None)  # the other ranks may not come to close it
        names = list(map(streams, communicators))
        del communicator, communicators
        return names

    with pytest.warns(ResourceWarning) as caught:
        assert all(any(names) for names in LoopbackWorld(2).run(body))
    output = sorted(str(each.message) for each in caught if each.category is ResourceWarning)
    assert output == [says(rank, 2) for rank in (0, 1)]
