"""What is a server's own: other numbers of servers, and ranks that are apart."""

import math

import numpy as np
import pytest
from small_runs import DROPOUT_NET, NETS, apart, everywhere, results, run_of, trained

from ringtrain.errors import DivergedError
from ringtrain.train.run.driver import make_driver
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.transports import DeviceTransport
from tests.fakes.turns import OneAtATime
from tests.says import says
from tests.tiers import thorough


@pytest.fixture
def in_turns(monkeypatch):
    """As ``everywhere``, of ranks that are apart: who is ahead of whom is decided by a seed."""

    def run(size, function, seed=0):
        with monkeypatch.context() as patched:
            return OneAtATime(size, patched, seed).run(function)

    return run


@pytest.mark.parametrize(("size", "servers"), [(2, 2), *thorough((1, 1))])
def test_it_goes_on_at_another_number_of_ranks_and_servers(size, servers):
    flags = {"optimizer": "adamw", "lr": 0.002, "dtype": "float64"}
    given = {"sync": "server", **flags}
    begun = results(3, DROPOUT_NET, 5, servers=3, **given)[0][2]
    found = results(size, DROPOUT_NET, 12, start=5, found=begun, servers=servers, **given)
    assert apart(found, results(1, DROPOUT_NET, 12, **flags)[0][1]) <= 1e-12


# ── ranks that are apart ──────────────────────────────────────────────────────────────────────────────────────────────
FLAGS = {"lr": 0.02, "augment": False, "net": NETS["ghost"]}


@pytest.mark.timing
@pytest.mark.parametrize(
    "flags",
    [
        *thorough({"staleness": 1}),
        {"staleness": 3, "servers": 2, "dedicated": True, "overlap": "forward", "clip_norm": 1.0},
        *thorough({"staleness": 2, "optimizer": "adamw", "lr": 0.005}),
    ],
)
def test_with_staleness_it_learns_and_goes_on_at_another_number_of_ranks(in_turns, flags):
    """Down to a share of the first loss; that of serial training is 0.1."""
    flags = {**FLAGS, **flags}

    def served(size, net, iterations, **more):
        return in_turns(size, lambda t: trained(t, net, iterations, dtype="float64", sync="server", **more))

    begun = served(4, iterations=40, settle_at=(7,), **flags)
    assert len({weights.tobytes() for _, weights, _ in begun}) == 1
    assert len(begun[0][0]) == 40
    found = served(3, start=40, found=begun[0][2], iterations=80, **flags)
    assert np.mean(found[0][0][-10:]) < 0.25 * begun[0][0][0]


def paced(t, iterations, **flags):
    """Losses, weights and lag of ranks that go at the pace of the strategy, with two meetings."""
    flags = {"lr": 0.02, "augment": False, "iterations": iterations, "deadline_s": 20.0, **flags}
    run, ops = run_of(t, FLAGS["net"], examples=None, **flags)
    found = []
    pace = make_driver(run, t, 0, found.append, lambda *_: None)
    for first, stop in ((0, iterations // 2), (iterations // 2, iterations)):
        assert not pace.train(first, stop)
    pace.close()
    run.exchange.synchronize()
    return (
        [outcome.loss_sum / outcome.valid for outcome in found],
        ops.to_host(run.arena.weights),
        run.exchange.serving.lag(),
    )


@pytest.mark.timing
@pytest.mark.parametrize(
    "flags",
    [
        *thorough({"sync": "server", "overlap": "forward"}),
        {"sync": "server", "servers": 2, "dedicated": True},
        {"sync": "averaging", "average_every": 4},
    ],
)
def test_asynchronously_all_parts_are_trained_on_and_it_learns(in_turns, flags):
    results = in_turns(4, lambda t: paced(t, 80, asynchronous=True, dtype="float64", **flags))
    assert len({weights.tobytes() for _, weights, _ in results}) == 1
    losses, _, lag = results[0]
    assert len(losses) == 80 and np.mean(losses[-10:]) < 0.3 * losses[0]
    trainers = 2 if "dedicated" in flags else 4
    assert lag.clocks and len(lag.updates) == trainers
    assert flags["sync"] == "averaging" or sum(lag.updates.values()) == 80 * trainers


@pytest.mark.timing
def test_turns_decide_what_ranks_that_are_apart_see(in_turns):
    """The same seed gives the same bits; another seed others."""

    def weights(seed):
        return in_turns(3, lambda t: paced(t, 6, sync="server", asynchronous=True), seed)[0][1].tobytes()

    assert weights(1) == weights(1) != weights(2)


@pytest.mark.timing
def test_ranks_that_are_apart_meet(in_turns):
    """The server is done with its iterations while others still want weights of it: it does not wait for them before
    they have some."""
    for seed in range(3):
        results = in_turns(3, lambda t: paced(t, 10, sync="server", staleness=4), seed)
        assert len({weights.tobytes() for _, weights, _ in results}) == 1
        assert all(len(losses) == 10 for losses, *_ in results)
        assert results[0][2].largest <= 4 and set(results[0][2].updates.values()) == {10}


@pytest.mark.parametrize(
    "flags", [{"staleness": 1, "overlap": "forward"}, *thorough({"staleness": 2, "clip_norm": 0.5})]
)
def test_staleness_on_a_device_that_computes_later(flags):
    """Bit by bit on one rank, since what several see depends on who is early; on three nothing is read too soon."""

    def body(t, device):
        ops = FakeGpuOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="server", settle_at=(3,), **flags)

    host, device = (everywhere(1, lambda t, d=d: body(t, d)) for d in (False, True))
    assert host[0][1].tobytes() == device[0][1].tobytes()
    found = everywhere(3, lambda t: body(t, True))
    assert np.isfinite(found[0][1]).all() and len({weights.tobytes() for _, weights, _ in found}) == 1


@pytest.mark.timing
def test_a_loss_that_is_not_finite_ends_ranks_that_are_behind_and_want_weights():
    """Rank 2 is late: the server, rank 0, learns of the loss while rank 2 still waits for weights of it."""

    def run(transport):
        run, _ = run_of(
            transport,
            DROPOUT_NET,
            iterations=12,
            sync="server",
            staleness=2,
            lr=1e9,
            deadline_s=60.0,
            inject_slowdown="2:40",
        )
        with (
            run.batches(transport, 0, 12) as batches,
            pytest.raises(
                DivergedError, match=says("--lr", "--warmup", "--clip-norm", "--resume", f"{math.nan:g}")
            ) as told,
        ):
            for batch in batches:
                run.worker.iterate(batch)
        return told.value.everywhere

    assert all(everywhere(3, run))
