"""What is a server's own: other numbers of servers, and ranks that are apart."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, apart, diverges, everywhere, fake_gpu, paced, results, run_of, same_weights, trained
from strategies import NETS

from tests.tiers import thorough


@pytest.mark.parametrize(("size", "servers"), [(2, 2), *thorough((1, 1))])
def test_it_goes_on_at_another_number_of_ranks_and_servers(size, servers):
    flags = {"optimizer": "adamw", "lr": 0.002, "dtype": "float64"}
    options = {"sync": "server", **flags}
    begun = results(3, DROPOUT_NET, 5, servers=3, **options)[0][2]
    ranks = results(size, DROPOUT_NET, 12, start=5, checkpoint=begun, servers=servers, **options)
    assert apart(ranks, results(1, DROPOUT_NET, 12, **flags)[0][1]) <= 1e-12


# ── ranks that are apart ──────────────────────────────────────────────────────────────────────────────────────────────
PACED = {"lr": 0.02, "augment": False, "deadline_s": 20.0}
LEARN = {**PACED, "dtype": "float64", "deadline_s": 60.0}
FAR = {"staleness": 3, "servers": 2, "dedicated": True, "overlap": "forward", "clip_norm": 1.0}


@pytest.mark.timing
@pytest.mark.parametrize(
    "flags", [FAR, *thorough({"staleness": 1}, {"staleness": 2, "optimizer": "adamw", "lr": 0.005})]
)
def test_with_staleness_it_learns_and_goes_on_at_another_number_of_ranks(in_turns, flags):
    """Down to a share of the first loss; that of serial training is 0.1."""

    def served(size, iterations, **more):
        options = {**LEARN, "sync": "server", **flags, **more}
        return in_turns(size, lambda t: trained(t, NETS["ghost"], iterations, **options))

    begun = served(4, 40, settle_at=(7,))
    assert same_weights(begun) and len(begun[0][0]) == 40
    ranks = served(3, 80, start=40, checkpoint=begun[0][2])
    assert np.mean(ranks[0][0][-10:]) < 0.25 * begun[0][0][0]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("trainers", "flags"),
    [
        (2, {"servers": 2, "dedicated": True}),
        (4, {"sync": "averaging", "average_every": 4}),
        (4, {"sync": "averaging", "average_every": 4, "quorum": 2, "outer_momentum": 0.5}),
        *thorough((4, {"overlap": "forward"})),
    ],
)
def test_asynchronously_all_parts_are_trained_on_and_it_learns(in_turns, trainers, flags):
    """Down to a share of the first loss; that of serial training is 0.1."""
    options = {**LEARN, "sync": "server", "asynchronous": True, **flags}
    results = in_turns(4, lambda t: paced(t, NETS["ghost"], 80, **options))
    losses, _, lag = results[0]
    assert same_weights(results) and len(losses) == 80 and np.mean(losses[-10:]) < 0.3 * losses[0]
    assert lag.clocks and len(lag.updates) == trainers
    assert options["sync"] == "averaging" or sum(lag.updates.values()) == 80 * trainers


@pytest.mark.timing
def test_turns_decide_what_ranks_that_are_apart_see(in_turns):
    """The same seed gives the same bits; another seed others."""
    flags = {**PACED, "sync": "server", "asynchronous": True}

    def weights(seed):
        return in_turns(3, lambda t: paced(t, NETS["ghost"], 6, **flags), seed)[0][1].tobytes()

    assert weights(1) == weights(1) != weights(2)


@pytest.mark.timing
def test_ranks_that_are_apart_meet(in_turns):
    """The server is done with its iterations while others still want weights of it: it does not wait for them before
    they have some."""
    for seed in range(3):
        results = in_turns(3, lambda t: paced(t, NETS["ghost"], 10, sync="server", staleness=4, **PACED), seed)
        assert same_weights(results)
        assert all(len(losses) == 10 for losses, *_ in results)
        assert results[0][2].largest <= 4 and set(results[0][2].updates.values()) == {10}


@pytest.mark.parametrize(
    "flags", [{"staleness": 1, "overlap": "forward"}, *thorough({"staleness": 2, "clip_norm": 0.5})]
)
def test_staleness_on_a_device_that_computes_later(flags):
    """Bit by bit on one rank, since what several see depends on who is early; on three nothing is read too soon."""

    def body(t, device):
        transport, ops = fake_gpu(t, device)
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="server", settle_at=(3,), **flags)

    host, device = (everywhere(1, lambda t, d=d: body(t, d)) for d in (False, True))
    assert host[0][1].tobytes() == device[0][1].tobytes()
    ranks = everywhere(3, lambda t: body(t, True))
    assert np.isfinite(ranks[0][1]).all() and same_weights(ranks)


@pytest.mark.timing
def test_a_loss_that_is_not_finite_ends_ranks_that_are_behind_and_want_weights():
    """Rank 2 is late: the server, rank 0, learns of the loss while rank 2 still waits for weights of it."""

    flags = {"sync": "server", "staleness": 2, "lr": 1e9, "deadline_s": 60.0, "inject_slowdown": "2:40"}
    assert all(everywhere(3, lambda t: diverges(run_of(t, DROPOUT_NET, iterations=12, **flags)[0], t, 12)))
