"""Whenever gradients travel, training is that of one rank; between two passes the state is an iteration's."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, ITERATIONS, everywhere, run_of
from strategies import NETS, apart, trained

from ringtrain.train.pace import Together
from ringtrain.train.state import Progress, capture
from ringtrain.transport.loopback import LoopbackWorld
from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport

SYNCS = {"allreduce": {}, "sharded": {}, "averaging": {"average_from": 1000}}


@pytest.fixture(scope="module", params=NETS)
def net(request):
    """A net, and its weights after training on one rank."""
    text = NETS[request.param]
    return text, everywhere(1, lambda t: trained(t, text, ITERATIONS, dtype="float64"))[0][1]


@pytest.mark.parametrize("overlap", ["none", "forward"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_weights_are_those_of_one_rank(net, overlap, size):
    """Over an epoch's end; somebody looks in the middle. Progress by the thread in forward, where it has most to do."""
    text, want = net
    progress = "thread" if overlap == "forward" else "layers"
    for sync, more in SYNCS.items() if size == 3 else (("allreduce", {}),):
        flags = {"sync": sync, "overlap": overlap, "progress": progress, "bucket_bytes": 2000, **more}
        found = everywhere(
            size, lambda t, f=flags: trained(t, text, ITERATIONS, dtype="float64", settle_at=(7, 8), **f)
        )
        assert len({weights.tobytes() for _, weights, _ in found}) == 1
        assert apart(found, want) <= 1e-12, sync


@pytest.mark.parametrize("sync", SYNCS)
def test_ranks_without_examples(sync):
    """15 ghost batches of 2 in a batch, and 14 in a tail of 27: rank 14 of 15 has none."""
    net = NETS["ghost"].replace("ghost = 8", "ghost = 2")
    flags = {"sync": sync, "bucket_bytes": 500, **SYNCS[sync]}

    def run(overlap):
        return everywhere(15, lambda t: trained(t, net, 11, start=8, dtype="float64", overlap=overlap, **flags))[0]

    np.testing.assert_array_equal(run("forward")[1], run("backward")[1])


@pytest.mark.parametrize("flags", [{}, {"accumulate": 3}, {"sync": "sharded", "clip_norm": 0.5}, {"clip_norm": 0.5}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, overlap="forward", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]


def test_the_state_is_an_iterations_after_each_forward_pass():
    """There a copy of the process may be saved: what it saves is what is saved between iterations. Before, and after
    the update was left to the next forward pass, it is not."""

    def body(t):
        run, ops = run_of(t, DROPOUT_NET, iterations=4, overlap="forward", dtype="float64")
        here, between = [], []

        def saved(iteration):
            return capture(run, ops, t, Progress(iteration=iteration))

        def look():
            assert not run.exchange.late
            here.append((run.arena.weights.copy(), run.exchange.state()["momentum"].copy()))

        run.worker.after_forward = look
        with run.batches(t, 0, 4) as batches:
            for batch in batches:
                run.worker.iterate(batch)
                assert run.exchange.late
                if batch.iteration == 1:
                    saved(2)
                    assert not run.exchange.late
                    between.append((run.arena.weights.copy(), run.exchange.state()["momentum"].copy()))
        for found, want in zip(here[2], between[0], strict=True):
            np.testing.assert_array_equal(found, want)

    everywhere(2, body)


@pytest.mark.parametrize(("overlap", "after_an_iteration"), [("backward", True), ("forward", False)])
def test_a_copy_of_the_process_waits_until_no_update_is_left(overlap, after_an_iteration):
    """By what the lifeboat is told: it may be launched from then on."""

    class Told:
        def __init__(self):
            self.releases = []

        def release(self):
            self.releases.append(run.exchange.late)

    told = Told()
    (transport,) = LoopbackWorld(1).run(lambda t: t)
    run, _ = run_of(transport, DROPOUT_NET, iterations=3, overlap=overlap)
    pace = Together(run, transport, told, 0, account=lambda outcome: None, tick=lambda examples, seconds: None)
    pace.train(0, 3)
    pace.close()
    assert told.releases == [False] * (6 if after_an_iteration else 3)  # after each forward pass, and each iteration
