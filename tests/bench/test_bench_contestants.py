"""What `scripts/bench allreduce` sets beside the MPI."""

import numpy as np
import pytest

from ringtrain import Communicator
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.sweep import Sweep, sweep
from tests.loopback.world import LoopbackWorld

pytestmark = pytest.mark.usefixtures("short_streams")
SIZES = (64, 100_000)  # by the MPI's own, and mapped


@pytest.fixture
def contestants(benchmarks):
    return benchmarks("allreduce")


def swept(contestants, **asked):
    def body(transport):
        with Communicator(transport) as communicator:
            by = {"communicator": contestants.by_communicator, "prepared": contestants.by_preparing}
            baselines = {name: make(communicator) for name, make in by.items()}
            how = {"memories": contestants.MEMORIES, "baselines": baselines, "protocol": Protocol(repeats=3, warm_up=1)}
            buffers = Buffers(transport, {"prepared": contestants.memory_of(communicator)})
            return sweep(transport, Sweep(SIZES, tuple(by), **how, **asked), buffers=buffers).rows

    return LoopbackWorld(2).run(body)[0]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_communicator_takes_part_and_is_right(contestants, dtype):
    ops = ("sum", "max") if dtype == "int64" else ("sum", "mean", "max")
    rows = swept(contestants, dtypes=(dtype,), ops=ops)
    assert [(row["algorithm"], row["memory"]) for row in rows] == 2 * len(ops) * [
        ("communicator", "ordinary"),
        ("prepared", "prepared"),
    ]
    assert {(row["status"], row["wrong"]) for row in rows} == {("ok", 0)}


def test_what_they_do_not_do_is_refused_and_a_prepared_reduction_copies_nothing(contestants):
    rows = swept(contestants, dtypes=("float32", "bfloat16"))
    refused = {(row["algorithm"], row["dtype"]) for row in rows if row["status"] == "refused"}
    assert refused == {("communicator", "bfloat16"), ("prepared", "bfloat16")}
    assert {row["wrong"] for row in rows if row["status"] == "ok"} == {0}

    # Its memory is the communicator's own: what comes in is what is reduced.
    def body(transport):
        with Communicator(transport) as communicator:
            span = contestants.memory_of(communicator)(1003)[:1000].view(np.float32)
            reduction = communicator.prepare(span)
            span[...] = 1
            assert reduction._prepared.span.ctypes.data == span.ctypes.data
            assert reduction.start() is None and np.all(reduction.wait() == 2)

    LoopbackWorld(2).run(body)
