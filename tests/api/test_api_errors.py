"""What the communicator says no to."""

import re
import threading
from functools import partial

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.errors import MismatchError, StalledError, TransportError, UsageError
from ringtrain.transport.loopback import Loopback
from tests.fakes.arrays import halves
from tests.loopback.world import LoopbackWorld
from tests.says import says


def refused(pattern, call, *arguments, **options):
    with pytest.raises(UsageError, match=pattern):
        call(*arguments, **options)


def test_what_no_rank_could_ask_for(alone):
    ones, fixed = np.ones(3), np.ones(3)
    fixed.flags.writeable = False
    algorithm = says("--plugin", "'rign'") + "did you mean 'ring'"
    wire = says("'float8'") + "did you mean 'float16'"
    for dtype in ("uint8", "bool", "complex64", "longdouble", "int8", "datetime64[s]", "V3"):
        refused(says(", ".join(TYPES)), alone.allreduce, np.zeros(3, dtype))
    for pattern, call, arguments, options in (
        (says("'summ'") + "did you mean 'sum'", alone.allreduce, (ones, "summ"), {}),
        (algorithm, alone.allreduce, (ones,), {"algorithm": "rign"}),
        (algorithm, Communicator, (None, "rign"), {}),
        (says("'float23'") + "did you mean 'float32'", alone.empty, (3, "float23"), {}),
        (wire, alone.allreduce, (ones,), {"wire": "float8"}),
        (wire, Communicator, (), {"wire": "float8"}),
        (says("float16", "sum", "float64"), alone.allreduce, (ones,), {"wire": "float16"}),
        (says("bfloat16", "max", "float32"), alone.prepare, (np.ones(3, "f4"), "max"), {"wire": "bfloat16"}),
        (says("'mpi'"), Communicator, (None, "mpi"), {"wire": "float16"}),
        (says("int32"), alone.prepare, (np.ones(3, "i4"), "mean"), {}),
        (says("out", "float64 [4]", "float64 [3]"), alone.allreduce, (ones,), {"out": np.ones(4)}),
        (says("out", "float32 [3]", "float64 [3]"), alone.allreduce, (ones,), {"out": np.ones(3, "f4")}),
        (says("out"), alone.allreduce, (fixed,), {"out": fixed}),
        (says("the array"), alone.prepare, (fixed,), {}),
        (says("out"), alone.allreduce, (np.float64(1),), {"out": np.float64(1)}),
        (says([2, -1]), alone.empty, ((2, -1),), {}),
    ):
        refused(pattern, call, *arguments, **options)


def test_tuning(alone, tmp_path, monkeypatch):
    transport = Loopback()
    refused(r"none\.json .*No such file", Communicator, transport, tuning=tmp_path / "none.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ringtrain").mkdir()
    (tmp_path / "ringtrain" / "tuning.json").write_text("{")
    with pytest.warns(UserWarning, match=f"^without tuning: .*{tmp_path}/ringtrain/tuning.json"):
        assert Communicator(transport).allreduce(np.ones(3)).tolist() == [1, 1, 1]


def test_the_mpi_and_bfloat16(alone, monkeypatch):
    array = halves(monkeypatch)([1.0, 2.0])
    refused(says("bits", "integers"), alone.allreduce, array, algorithm="mpi")


def test_under_way(alone):
    reduction = alone.prepare(np.ones(3))
    reduction.start()
    refused(says("reduction", "finished"), reduction.start)
    refused(says("close"), alone.close)
    reduction.wait()
    alone.close()
    for call, *arguments in (
        (reduction.start,),
        (alone.empty, 3),
        (alone.prepare, np.ones(3)),
    ):
        refused(says("communicator", "closed"), call, *arguments)


# ── ranks that differ ─────────────────────────────────────────────────────────────────────────────────────
def shapes_types_and_operations(communicator):
    last = communicator.rank == 2
    communicator.allreduce(np.ones((2, 3 + last), "f4" if last else "f8"), "max" if last else "sum")


def calls(communicator):
    if communicator.rank:
        communicator.empty((2, 2))
    else:
        communicator.prepare(np.ones((2, 2), "f4"))


def places_in_our_memory(communicator):
    ours = communicator.empty(8)
    half = ours[4:] if communicator.rank else ours[:4]
    communicator.allreduce(half, out=half)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("call", "size", "words"),
    [
        (shapes_types_and_operations, 3, ("ranks 0, 1", "sum", "float64", [2, 3], "rank 2", "max", "float32", [2, 4])),
        (lambda c: c.allreduce(np.ones(6), algorithm=("ring", "star")[c.rank]), 2, ("float64", [6], "ring", "star")),
        (calls, 2, ("rank 0", "sum", "float32", [2, 2], "auto", "rank 1")),
        (places_in_our_memory, 2, ("rank 0", "sum", "float32", [4], "auto", "block", "byte", 0)),
    ],
)
def test_calls_that_differ_are_named_to_every_rank(call, size, words):
    def body(transport):
        with pytest.raises(UsageError) as caught:
            call(Communicator(transport, deadline_s=60.0))
        assert caught.value.everywhere
        return str(caught.value)

    (message,) = set(LoopbackWorld(size).run(body))
    assert re.match(says("rank"), message) and says(*words).matches(message)


@pytest.mark.timing
@pytest.mark.usefixtures("timeless")
@pytest.mark.parametrize("again", [False, True])
def test_under_a_guard_shapes_of_as_many_elements_differ(again):

    def body(transport):
        connected = Communicator(transport, algorithm="ring", check_collectives=True, deadline_s=10.0)
        arrays = [np.ones((2, 3)), np.ones((3, 2))]
        calls = [partial(connected.allreduce, array) for array in arrays]
        if again:
            reductions = [connected.prepare(array) for array in arrays]
            calls = [lambda each=each: each.start() or each.wait() for each in reductions]
        for call in calls:
            call()
        with pytest.raises(MismatchError) as caught:
            calls[transport.rank]()
        connected._guard.close()
        return str(caught.value)

    for message in LoopbackWorld(2).run(body):
        assert says([2, 3]).matches(message) and says([3, 2]).matches(message)


@pytest.mark.timing
def test_prepared_ones_that_differ_never_mix():
    """Both are known to all ranks, so that nothing is compared: they wait in vain, and are told for whom."""
    array = np.ones(6)

    def body(transport):
        communicator = Communicator(transport, algorithm="ring", deadline_s=60.0)
        for known in (np.ones(6), np.ones(7), np.ones(6, "f4")):
            communicator.allreduce(known)
        communicator.set_deadline(0.3)  # from here on nobody is met
        mine = [array, np.ones(6, "f4")][transport.rank]
        communicator.allreduce(mine, out=mine)

    with pytest.raises((StalledError, TransportError), match=says("0.3", "rank")):
        LoopbackWorld(2).run(body)
    assert (array == 1).all()


def test_a_prepared_reduction_whose_start_has_failed_is_not_in_flight():
    together = threading.Event()

    def body(transport):
        c = Communicator(transport, algorithm="mpi", deadline_s=20.0)
        array = c.empty(3, "float64")
        array[:] = 4
        reduction = c.prepare(array, "mean")
        if transport.rank:
            together.wait(20)
            return None
        c.set_deadline(0.2)
        with pytest.raises(StalledError, match="rank 1 to join"):
            reduction.start()
        together.set()
        return reduction.test(), reduction.wait().tolist()

    assert LoopbackWorld(2).run(body)[0] == (True, [4, 4, 4])


def test_a_new_deadline_ends_the_waits_of_what_was_prepared_before():
    def body(transport):
        c = Communicator(transport, algorithm="ring", deadline_s=20.0)
        reduction = c.prepare(c.empty(3))
        c.set_deadline(0.2)
        if transport.rank == 0:
            reduction.start()
            reduction.wait()

    with pytest.raises(StalledError, match=says("0.2", "rank 1")):
        LoopbackWorld(2).run(body)
