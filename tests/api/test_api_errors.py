"""What the communicator says no to."""

import re
import socket
import threading
from functools import partial

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.allreduce import texts as allreduce_texts
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.api import communicator, texts
from ringtrain.errors import MismatchError, StalledError, TransportError, UsageError
from ringtrain.monitor import texts as monitor_texts
from ringtrain.monitor.guard import Guard
from ringtrain.transport import texts as transport_texts
from ringtrain.transport.threads.loopback import LoopbackWorld
from tests.fakes.arrays import halves
from tests.fakes.clock import Clock


@pytest.fixture
def alone():
    return Communicator(LoopbackWorld(1).transport(0))


def refused(pattern, call, *arguments, **options):
    with pytest.raises(UsageError, match=pattern):
        call(*arguments, **options)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "complex64", "longdouble", "int8", "datetime64[s]", "V3"])
def test_types(alone, dtype):
    refused(texts.NOT_REDUCED.pattern(known=", ".join(TYPES)), alone.allreduce, np.zeros(3, dtype))


def test_names(alone):
    operation = texts.UNKNOWN_OPERATION.pattern(op="summ") + "did you mean 'sum'"
    algorithm = allreduce_texts.UNKNOWN_ALGORITHM.pattern(name="rign") + "did you mean 'ring'"
    wire = allreduce_texts.UNKNOWN_WIRE.pattern(name="float8") + "did you mean 'float16'"
    refused(operation, alone.allreduce, np.ones(3), "summ")
    refused(algorithm, alone.allreduce, np.ones(3), algorithm="rign")
    refused(algorithm, Communicator, None, "rign")
    refused(texts.UNKNOWN_TYPE.pattern(dtype="float23") + "did you mean 'float32'", alone.empty, 3, "float23")
    refused(algorithm, alone.bench, np.ones(3), algorithms=["rign"])
    refused(wire, alone.allreduce, np.ones(3), wire="float8")
    refused(wire, Communicator, wire="float8")


def test_wires(alone):
    sums = texts.WIRE_CARRIES.pattern(wire="float16", op="sum", dtype="float64")
    refused(sums, alone.allreduce, np.ones(3), wire="float16")
    largest = texts.WIRE_CARRIES.pattern(wire="bfloat16", op="max", dtype="float32")
    refused(largest, alone.prepare, np.ones(3, "f4"), "max", wire="bfloat16")
    refused(allreduce_texts.SENDS_UNPACKED.pattern(name="mpi"), Communicator, None, "mpi", wire="float16")


def test_tuning(alone, tmp_path, monkeypatch):
    transport = LoopbackWorld(1).transport(0)
    named = allreduce_texts.TUNING_FILE(path=tmp_path / "none.json")
    refused(allreduce_texts.NO_TUNING_FILE.pattern(file=named), Communicator, transport, tuning=tmp_path / "none.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ringtrain").mkdir()
    (tmp_path / "ringtrain" / "tuning.json").write_text("{")
    damaged = allreduce_texts.TUNING_FILE(path=tmp_path / "ringtrain" / "tuning.json")
    not_json = allreduce_texts.TUNING_NOT_JSON.pattern(file=damaged)
    with pytest.warns(UserWarning, match=allreduce_texts.TUNING_LEFT_OUT.pattern(error="") + not_json):
        assert Communicator(transport).allreduce(np.ones(3)).tolist() == [1, 1, 1]


def test_means_of_whole_numbers(alone):
    refused(texts.MEAN_NOT_WHOLE.pattern(dtype="int32"), alone.prepare, np.ones(3, "i4"), "mean")


def test_out(alone):
    unlike = partial(texts.UNLIKE.pattern, dtype="float64", shape=[3])
    refused(unlike(out_dtype="float64", out_shape=[4]), alone.allreduce, np.ones(3), out=np.ones(4))
    refused(unlike(out_dtype="float32", out_shape=[3]), alone.allreduce, np.ones(3), out=np.ones(3, "f4"))
    fixed = np.ones(3)
    fixed.flags.writeable = False
    refused(texts.READ_ONLY.pattern(name="out"), alone.allreduce, fixed, out=fixed)
    refused(texts.READ_ONLY.pattern(name="the array"), alone.prepare, fixed)
    refused(texts.READ_ONLY.pattern(name="out"), alone.allreduce, np.float64(1), out=np.float64(1))


def test_shapes_of_empty(alone):
    refused(texts.NO_SHAPE.pattern(shape=[2, -1]), alone.empty, (2, -1))


def test_bench(alone):
    refused(texts.NO_REPEATS.pattern(repeats=0), alone.bench, np.ones(3), repeats=0)


def test_the_mpi_and_bfloat16(alone, monkeypatch):
    array = halves(monkeypatch)([1.0, 2.0])
    refused(allreduce_texts.NO_BFLOAT16.pattern(), alone.allreduce, array, algorithm="mpi")


def test_under_way(alone):
    reduction = alone.prepare(np.ones(3))
    reduction.start()
    refused(texts.STARTED_AGAIN.pattern(), reduction.start)
    refused(texts.UNDER_WAY.pattern(call="bench"), alone.bench, np.ones(3))
    refused(texts.UNDER_WAY.pattern(call="close"), alone.close)
    reduction.wait()
    alone.close()
    refused(texts.CLOSED.pattern(), reduction.start)
    refused(texts.CLOSED.pattern(), alone.empty, 3)
    refused(texts.CLOSED.pattern(), alone.prepare, np.ones(3))
    refused(texts.CLOSED.pattern(), alone.bench, np.ones(3))


# ── ranks that differ ─────────────────────────────────────────────────────────────────────────────────────


def asked(op, dtype, shape, algorithm, place=""):
    return texts.REQUEST(op=op, dtype=dtype, shape=shape, algorithm=algorithm, wire="", place=place)


def both(some, call, others, other):
    calls = (texts.CALL_OF(ranks=some, call=call), texts.CALL_OF(ranks=others, call=other))
    return texts.CALLS_DIFFER(calls="; ".join(calls))


def differing(call, size=3):
    """What every rank is told when ``call(communicator)`` differs among ranks."""

    def body(transport):
        communicator = Communicator(transport, deadline_s=60.0)
        with pytest.raises(UsageError) as caught:
            call(communicator)
        assert caught.value.everywhere
        return str(caught.value)

    (message,) = set(LoopbackWorld(size).run(body))
    assert re.match(texts.CALLS_DIFFER.pattern(calls="rank"), message)
    return message


@pytest.mark.timing
def test_shapes_types_operations_algorithms_that_differ():
    def call(communicator):
        last = communicator.rank == 2
        communicator.allreduce(np.ones((2, 3 + last), "f4" if last else "f8"), "max" if last else "sum")

    least, most = asked("sum", "float64", [2, 3], "auto"), asked("max", "float32", [2, 4], "auto")
    assert differing(call) == both(
        "ranks 0, 1", texts.ALL_REDUCE(request=least), "rank 2", texts.ALL_REDUCE(request=most)
    )
    ring, star = (texts.ALL_REDUCE(request=asked("sum", "float64", [6], name)) for name in ("ring", "star"))
    told = differing(lambda c: c.allreduce(np.ones(6), algorithm=("ring", "star")[c.rank]), 2)
    assert told == both("rank 0", ring, "rank 1", star)


@pytest.mark.timing
def test_calls_that_differ():
    def call(communicator):
        if communicator.rank:
            communicator.empty((2, 2))
        else:
            communicator.prepare(np.ones((2, 2), "f4"))

    prepare = texts.PREPARE(request=asked("sum", "float32", [2, 2], "auto"))
    assert differing(call, 2) == both("rank 0", prepare, "rank 1", texts.EMPTY(dtype="float32", shape=[2, 2]))


@pytest.mark.timing
def test_bench_that_differs():
    message = differing(lambda c: c.bench(np.ones(3 + c.rank), algorithms=["ring"]), 2)
    three, four = (texts.BENCH(op="sum", dtype="float64", shape=[count], algorithms="ring") for count in (3, 4))
    assert message == both("rank 0", three, "rank 1", four)


@pytest.mark.timing
def test_places_in_our_memory_that_differ():
    def call(communicator):
        ours = communicator.empty(8)
        half = ours[4:] if communicator.rank else ours[:4]
        communicator.allreduce(half, out=half)

    first = asked("sum", "float32", [4], "auto", texts.IN_BLOCK(block=0, offset=0))
    assert texts.CALL_OF(ranks="rank 0", call=texts.ALL_REDUCE(request=first)) in differing(call, 2)


def test_after_a_difference_all_go_on():
    def body(transport):
        communicator = Communicator(transport, deadline_s=10.0)
        with pytest.raises(UsageError, match=texts.CALLS_DIFFER.pattern()):
            communicator.allreduce(np.ones(3 + transport.rank))
        return communicator.allreduce(np.ones(3)).tolist()

    assert LoopbackWorld(2).run(body) == [[2, 2, 2]] * 2


@pytest.mark.timing
def test_under_a_guard_the_ranks_that_differ_are_named(monkeypatch):
    """All of them tell it: here nobody's error ends the others."""
    monkeypatch.setattr(communicator, "Guard", partial(Guard, turn_s=0.0, clock=Clock()))

    def body(transport):
        communicator = Communicator(transport, algorithm="ring", check_collectives=True, deadline_s=10.0)
        for op in ("max", "sum"):
            communicator.allreduce(np.ones(6), op)
        with pytest.raises(MismatchError) as caught:
            communicator.allreduce(np.ones(6), "max" if transport.rank == 1 else "sum")
        communicator._guard.close()
        return str(caught.value)

    for message in LoopbackWorld(3).run(body):
        call = partial(monitor_texts.WATCHED, kind="all-reduce", count=6, dtype="float64", algorithm="ring")
        others = monitor_texts.GOT(ranks=f"rank 1 ({socket.gethostname()})", call=call(op="max"))
        expected = {"ranks": "ranks 0, 2", "call": call(op="sum")}
        assert monitor_texts.MISMATCH(number=5, others=others, **expected) in message


@pytest.mark.timing
@pytest.mark.parametrize("prepared", [False, True])
def test_under_a_guard_shapes_of_as_many_elements_differ(monkeypatch, prepared):
    monkeypatch.setattr(communicator, "Guard", partial(Guard, turn_s=0.0, clock=Clock()))

    def body(transport):
        made = Communicator(transport, algorithm="ring", check_collectives=True, deadline_s=10.0)
        arrays = [np.ones((2, 3)), np.ones((3, 2))]
        calls = [partial(made.allreduce, array) for array in arrays]
        if prepared:
            reductions = [made.prepare(array) for array in arrays]
            calls = [lambda each=each: each.start() or each.wait() for each in reductions]
        for call in calls:
            call()
        with pytest.raises(MismatchError) as caught:
            calls[transport.rank]()
        made._guard.close()
        return str(caught.value)

    for message in LoopbackWorld(2).run(body):
        assert texts.OF_SHAPE(shape=[2, 3]) in message and texts.OF_SHAPE(shape=[3, 2]) in message


@pytest.mark.timing
def test_prepared_ones_that_differ_never_mix():
    """Both are known to all ranks, so that nothing is compared: they wait in vain, and are told for whom."""
    held = np.ones(6)

    def body(transport):
        communicator = Communicator(transport, algorithm="ring", deadline_s=60.0)
        for array in (np.ones(6), np.ones(7), np.ones(6, "f4")):
            communicator.allreduce(array)
        communicator.set_deadline(0.3)  # from here on nobody is met
        communicator.allreduce([held, np.ones(6, "f4")][transport.rank], out=[held, np.ones(6, "f4")][transport.rank])

    with pytest.raises(
        (StalledError, TransportError), match=transport_texts.NO_PROGRESS.pattern(seconds=0.3, awaited="rank")
    ):
        LoopbackWorld(2).run(body)
    assert (held == 1).all()


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

    with pytest.raises(StalledError, match=transport_texts.NO_PROGRESS.pattern(seconds=0.2, awaited="rank 1")):
        LoopbackWorld(2).run(body)
