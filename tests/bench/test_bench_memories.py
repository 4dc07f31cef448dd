"""Where buffers lie while they are all-reduced, and who has written them before."""

import re
from functools import partial

import numpy as np
import pytest

from ringtrain.bench.measure import timing
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep import files, gates
from ringtrain.bench.tune import TuneOptions, sweep_of
from ringtrain.cli.tune import tune
from ringtrain.errors import UsageError
from tests.bench.sweeps import swept as any_sweep
from tests.loopback.world import LoopbackWorld, ThreadTransport
from tests.says import says

pytestmark = pytest.mark.usefixtures("short_streams")
swept = partial(any_sweep, sizes=(64,))


@pytest.fixture
def mpi_takes(monkeypatch):
    """mpi_takes(shared, ordinary): the seconds of the MPI's own in each memory; all else takes one."""

    def timed(transport, action):
        transport.took = 1.0
        action()
        return transport.took

    def set_times(shared, ordinary):
        def native(self, span, op="sum"):
            plain(self, span, op)
            self.took = ordinary if self.peer_views(span) is None else shared

        monkeypatch.setattr(ThreadTransport, "native_allreduce", native)

    plain = ThreadTransport.native_allreduce
    monkeypatch.setattr(timing, "timed", timed)
    return set_times


@pytest.mark.parametrize(
    ("shared", "ordinary", "memory", "reason"),
    [(3.0, 2.0, "ordinary", says("1.50", "shared")), (2.0, 5.0, "shared", says("2.50", "ordinary"))],
)
def test_all_are_compared_with_the_mpi_in_the_memory_where_it_is_faster(mpi_takes, shared, ordinary, memory, reason):
    mpi_takes(shared, ordinary)
    ring, mpi = swept(algorithms=("ring", "mpi")).rows
    assert (mpi["memory"], mpi["median_s"], mpi["reason"], mpi["wrong"]) == (memory, 2.0, reason, 0)
    assert (ring["memory"], ring["median_s"], ring["speedup"]) == ("shared", 1.0, 2.0)
    assert mpi["speedup"] is None


def test_auto_goes_by_the_mpi_in_shared_memory_and_what_is_wrong_there_is_seen(mpi_takes, monkeypatch):
    """What it would do in other memory is not for auto to have."""
    mpi_takes(shared=3.0, ordinary=2.0)
    flags = tune.make_context("tune", ["--algorithm", "mpi,ring"]).params
    asked = LoopbackWorld(2).run(lambda transport: sweep_of(transport, TuneOptions(**flags)))[0]
    (row,) = swept(algorithms=("mpi",), memories=asked.memories).rows
    assert (row["memory"], row["median_s"], row["reason"]) == ("shared", 3.0, None)
    right = ThreadTransport.native_allreduce

    def silent_where_shared(self, span, op="sum"):
        if self.peer_views(span) is None:
            right(self, span, op)

    monkeypatch.setattr(ThreadTransport, "native_allreduce", silent_where_shared)
    (row,) = swept(algorithms=("mpi",)).rows
    assert (row["status"], row["memory"]) == ("wrong", "shared") and re.search(says("wrong", "elements"), row["reason"])


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_that_share_no_memory_have_ordinary_memory_alone(size):
    """A node of several ranks is enough to share."""
    assert LoopbackWorld(size, size).run(lambda t: Buffers(t).memories) == [("ordinary",)] * size
    (row,) = swept(size, size, algorithms=("mpi",)).rows
    assert (row["memory"], row["reason"]) == ("ordinary", None)
    assert set(LoopbackWorld(3, 2).run(lambda t: Buffers(t).memories)) == {("shared", "ordinary")}


def test_a_contestant_may_bring_memory_and_a_refused_row_lies_nowhere():
    def brought(nbytes):
        spans.append(np.zeros(nbytes, np.uint8))
        return spans[-1]

    def prepare(job):
        assert any(np.shares_memory(job.target, span) for span in spans) and job.memory == "brought"
        return lambda: job.transport.native_allreduce(job.target, "sum")

    spans = []
    asked = {"algorithms": ("mpi", "rival"), "baselines": {"rival": prepare}, "memories": {"rival": ("brought",)}}
    rows = swept(buffers=lambda transport: Buffers(transport, {"brought": brought}), **asked).rows
    assert [(row["memory"], row["wrong"]) for row in rows] == [("shared", 0), ("brought", 0)]
    (row,) = swept(algorithms=("mpi",), dtypes=("bfloat16",)).rows
    assert (row["status"], row["memory"]) == ("refused", None)


# ── written before ────────────────────────────────────────────────────────────────────────────────────────────
def seen(**protocol) -> list[float]:
    """What a contestant finds in its contribution, call by call, on rank 1; it leaves sevens there."""
    contents = {rank: [] for rank in range(2)}

    def prepare(job):
        def run():
            contents[job.transport.rank].append(float(job.contribution.max()))
            job.contribution[...] = 7

        return run

    protocol = Protocol(repeats=3, warm_up=2, **protocol)
    asked = {"algorithms": ("fake",), "baselines": {"fake": prepare}, "checked": False, "protocol": protocol}
    swept(**asked)
    assert contents[0] == contents[1]
    return contents[1]


def test_every_rank_writes_its_buffer_before_every_call():
    assert seen() == [0.0] * 5
    assert seen(cold_bytes=1 << 16) == [0.0] * 5


def test_writing_and_emptying_caches_are_not_timed(monkeypatch):
    events = []

    class Noted(Buffers):
        def clear(self, span):
            events.append("written")
            super().clear(span)

    def timed(transport, action):
        events.append("clock")
        action()
        return 1.0

    monkeypatch.setattr(timing, "timed", timed)
    monkeypatch.setattr(timing, "_empty_caches", lambda scrub: events.append("emptied"))
    rival = {"fake": lambda job: lambda: events.append("run")}
    protocol = Protocol(repeats=2, warm_up=0)
    swept(1, buffers=Noted, algorithms=("fake",), baselines=rival, checked=False, protocol=protocol)
    assert events[-8:] == 2 * ["written", "emptied", "clock", "run"]


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        ({}, Protocol(cold_bytes=9), ("emptied",)),
        ({"protocol": {"cold_bytes": 0}}, Protocol(cold_bytes=9), ("emptied",)),
        ({"protocol": {"cold_bytes": 0}}, Protocol(beside=1), ("1 busy process",)),
        ({"protocol": {"cold_bytes": 0}}, Protocol(), None),
        ({"protocol": {"cold_bytes": 9}}, Protocol(cold_bytes=12), None),
    ],
)
def test_sweeps_are_compared_where_their_rules_are_the_same(tmp_path, then, now, words):
    files.write_json(tmp_path / "old.json", then, [])
    if words is None:
        assert gates.earlier(tmp_path / "old.json", now)["rows"] == []
        return
    with pytest.raises(UsageError, match=says("--cold", "writes", "buffer", *words)):
        gates.earlier(tmp_path / "old.json", now)
