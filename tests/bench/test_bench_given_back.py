"""What a sweep prepares, it gives back: large sweeps hold the messages of one size at a time."""

import pytest

from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.sweep import Sweep, sweep
from tests.loopback.world import LoopbackWorld, ThreadHandle, ThreadTransport

pytestmark = pytest.mark.usefixtures("short_streams")


@pytest.mark.parametrize("passes", [1, 2])
def test_what_was_prepared_is_given_back(monkeypatch, passes):
    prepared, freed, recvs = [], [], ThreadTransport.recvs

    def noted(self, moves, tag):
        prepared.append(recvs(self, moves, tag))
        return prepared[-1]

    monkeypatch.setattr(ThreadTransport, "recvs", noted)
    monkeypatch.setattr(ThreadHandle, "free", lambda handle: freed.append(handle))
    asked = Sweep((64, 4096), ("mpi", "auto", "ring", "routed"), protocol=Protocol(repeats=3, warm_up=1), passes=passes)
    found = LoopbackWorld(4, nodes=2).run(lambda transport: sweep(transport, asked))[0]
    assert {row["status"] for row in found.rows} == {"ok"}
    calibrating = 2 * len(asked.algorithms)  # its tag
    trials = {handle for handle in prepared if handle._tag != calibrating}
    assert trials and trials <= set(freed) and len(freed) == len(set(freed))
