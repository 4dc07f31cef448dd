"""What the communicator says no to."""

import socket
from functools import partial

import numpy as np
import pytest

from ringtrain import Communicator, communicator
from ringtrain.errors import MismatchError, StalledError, TransportError, UsageError
from ringtrain.exchange.guard import Guard
from ringtrain.transport.loopback import LoopbackWorld
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
    refused("elements are not reduced: convert the array to one of float16", alone.allreduce, np.zeros(3, dtype))


def test_names(alone):
    refused("unknown operation 'summ': did you mean 'sum'?", alone.allreduce, np.ones(3), "summ")
    refused("unknown algorithm 'rign': did you mean 'ring'?", alone.allreduce, np.ones(3), algorithm="rign")
    refused("unknown algorithm 'rign': did you mean 'ring'?", Communicator, None, "rign")
    refused("unknown type 'float23': did you mean 'float32'?", alone.empty, 3, "float23")
    refused("unknown algorithm 'rign'", alone.bench, np.ones(3), algorithms=["rign"])
    refused("unknown wire 'float8': did you mean 'float16'?", alone.allreduce, np.ones(3), wire="float8")
    refused("unknown wire 'float8': did you mean 'float16'?", Communicator, wire="float8")


def test_wires(alone):
    refused(
        "carries sums and means of float32, and this is sum of float64: use wire='none'",
        alone.allreduce,
        np.ones(3),
        wire="float16",
    )
    refused("and this is max of float32: use wire='none'", alone.prepare, np.ones(3, "f4"), "max", wire="bfloat16")
    refused("'mpi', the MPI's own all-reduce, sends a buffer as it is", Communicator, None, "mpi", wire="float16")


def test_tuning(alone, tmp_path, monkeypatch):
    transport = LoopbackWorld(1).transport(0)
    refused("there is no tuning file .*none.json", Communicator, transport, tuning=tmp_path / "none.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ringtrain").mkdir()
    (tmp_path / "ringtrain" / "tuning.json").write_text("{")
    with pytest.warns(UserWarning, match="without tuning: tuning file .* is not JSON"):
        assert Communicator(transport).allreduce(np.ones(3)).tolist() == [1, 1, 1]


def test_means_of_whole_numbers(alone):
    refused("mean of int32 would not be whole: use op='sum', or", alone.prepare, np.ones(3, "i4"), "mean")


def test_out(alone):
    refused(r"out is float64 \[4\], and the array float64 \[3\]", alone.allreduce, np.ones(3), out=np.ones(4))
    refused(r"out is float32 \[3\], and the array float64 \[3\]", alone.allreduce, np.ones(3), out=np.ones(3, "f4"))
    fixed = np.ones(3)
    fixed.flags.writeable = False
    refused("out cannot be written to: use what allreduce", alone.allreduce, fixed, out=fixed)
    refused("the array cannot be written to: use what allreduce", alone.prepare, fixed)
    refused("out cannot be written to", alone.allreduce, np.float64(1), out=np.float64(1))


def test_shapes_of_empty(alone):
    refused(r"an array cannot have the shape \[2, -1\]: lengths begin at 0", alone.empty, (2, -1))


def test_bench(alone):
    refused("repeats=0: nothing would be measured; give 1 or more", alone.bench, np.ones(3), repeats=0)


def test_the_mpi_and_bfloat16(alone, monkeypatch):
    array = halves(monkeypatch)([1.0, 2.0])
    refused("MPI has no bfloat16: it would add the bits as whole numbers", alone.allreduce, array, algorithm="mpi")


def test_under_way(alone):
    reduction = alone.prepare(np.ones(3))
    reduction.start()
    refused("started again before it was done: wait\\(\\) first", reduction.start)
    refused("bench\\(\\) while a prepared reduction is under way: wait\\(\\)", alone.bench, np.ones(3))
    refused("close\\(\\) while a prepared reduction is under way: wait\\(\\)", alone.close)
    reduction.wait()
    alone.close()
    refused("this communicator is closed: make another", reduction.start)
    refused("this communicator is closed", alone.empty, 3)
    refused("this communicator is closed", alone.prepare, np.ones(3))
    refused("this communicator is closed", alone.bench, np.ones(3))


# ── ranks that differ ─────────────────────────────────────────────────────────────────────────────────────


def differing(call, size=3):
    """What every rank is told when ``call(communicator)`` differs among ranks."""

    def body(transport):
        communicator = Communicator(transport, deadline_s=60.0)
        with pytest.raises(UsageError) as caught:
            call(communicator)
        assert caught.value.everywhere
        return str(caught.value)

    (message,) = set(LoopbackWorld(size).run(body))
    assert message.startswith("ranks make different calls: all must make the same. rank")
    return message


@pytest.mark.timing
def test_shapes_types_operations_algorithms_that_differ():
    def call(communicator):
        last = communicator.rank == 2
        communicator.allreduce(np.ones((2, 3 + last), "f4" if last else "f8"), "max" if last else "sum")

    assert differing(call).endswith(
        "ranks 0, 1: allreduce, sum of float64 [2, 3] by auto; rank 2: allreduce, max of float32 [2, 4] by auto"
    )
    assert "[6] by ring; rank 1: allreduce, sum of float64 [6] by star" in differing(
        lambda c: c.allreduce(np.ones(6), algorithm=("ring", "star")[c.rank]), 2
    )


@pytest.mark.timing
def test_calls_that_differ():
    def call(communicator):
        if communicator.rank:
            communicator.empty((2, 2))
        else:
            communicator.prepare(np.ones((2, 2), "f4"))

    assert "rank 0: prepare, sum of float32 [2, 2] by auto; rank 1: empty, float32 [2, 2]" in differing(call, 2)


@pytest.mark.timing
def test_bench_that_differs():
    message = differing(lambda c: c.bench(np.ones(3 + c.rank), algorithms=["ring"]), 2)
    assert "rank 0: bench, sum of float64 [3] by ring; rank 1: bench, sum of float64 [4] by ring" in message


@pytest.mark.timing
def test_places_in_our_memory_that_differ():
    def call(communicator):
        ours = communicator.empty(8)
        half = ours[4:] if communicator.rank else ours[:4]
        communicator.allreduce(half, out=half)

    assert "[4] by auto in block 0 at byte 0; rank 1: " in differing(call, 2)


def test_after_a_difference_all_go_on():
    def body(transport):
        communicator = Communicator(transport, deadline_s=10.0)
        with pytest.raises(UsageError, match="ranks make different calls"):
            communicator.allreduce(np.ones(3 + transport.rank))
        return communicator.allreduce(np.ones(3)).tolist()

    assert LoopbackWorld(2).run(body) == [[2, 2, 2]] * 2


@pytest.mark.timing
def test_under_a_guard_the_ranks_that_differ_are_named(monkeypatch):
    """All of them tell it: here nobody's error ends the others."""
    monkeypatch.setattr(communicator, "Guard", partial(Guard, turn_s=0.0, clock=Clock()))

    def body(transport):
        communicator = Communicator(transport, algorithm="ring", guard=True, deadline_s=10.0)
        for op in ("max", "sum"):
            communicator.allreduce(np.ones(6), op)
        with pytest.raises(MismatchError) as caught:
            communicator.allreduce(np.ones(6), "max" if transport.rank == 1 else "sum")
        communicator._guard.close()
        return str(caught.value)

    for message in LoopbackWorld(3).run(body):
        assert "collective 3 is not the same on all ranks: expected, as on ranks 0, 2: " in message
        got = f"by ring (sum); got, on rank 1 ({socket.gethostname()}): all-reduce of 6 float64 by ring (max)."
        assert got in message


@pytest.mark.timing
def test_prepared_ones_that_differ_never_mix():
    """Both are known to all ranks, so that nothing is compared: they wait in vain, and are told for whom."""
    held = np.ones(6)

    def body(transport):
        communicator = Communicator(transport, algorithm="ring", deadline_s=60.0)
        for array in (np.ones(6), np.ones(7), np.ones(6, "f4")):
            communicator.allreduce(array)
        communicator._deadline_s = 0.3  # from here on nobody is met
        communicator.allreduce([held, np.ones(6, "f4")][transport.rank], out=[held, np.ones(6, "f4")][transport.rank])

    with pytest.raises((StalledError, TransportError), match=r"no progress for 0\.3 s, waiting for rank"):
        LoopbackWorld(2).run(body)
    assert (held == 1).all()
