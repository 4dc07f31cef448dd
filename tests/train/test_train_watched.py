"""Nobody who looks changes a run: with checkpoints, evaluations, traces and notes it ends with the same bits. It also
goes on from a checkpoint as if it had never stopped."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import DIGITS, everywhere
from strategies import NETS, STRATEGIES

from ringtrain.storage.run_folder.run_folder import find_checkpoint
from ringtrain.train.options import read_options
from ringtrain.train.run import tracing
from ringtrain.train.start import start
from ringtrain.train.stopping.signals import StopFlag
from tests.runs import records
from tests.says import says
from tests.tiers import daily

# They add changes of weights as they arrive, which is another order in each run.
EXCLUDED = {
    "stale server",
    "asynchronous server",
    "asynchronous averaging",
    "averaging by a quorum",
}
FORWARD = {"overlap": "forward", "bucket_bytes": 500}
MORE = {
    "allreduce, forward": ("allreduce", FORWARD),
    "allreduce, adamw, average of weights": ("allreduce", {"optimizer": "adamw", "ema": 0.9}),
    "sharded, forward": ("sharded", FORWARD),
    "server, forward": ("server", {**FORWARD, "servers": 2}),
    "hybrid, small buckets": ("hybrid", {"bucket_bytes": 500}),
    "pipeline, micro-batches": ("pipeline", {"accumulate": 2}),
    "averaging, adamw": ("averaging", {"optimizer": "adamw"}),
    "averaging, momentum kept, all-reduce before": ("averaging, momentum kept", {"average_from": 2}),
    "averaging, an outer step, momentum kept": ("averaging, an outer step", {"average_momentum": "keep"}),
    "top-k, later": ("top-k", {"compress_from": 4}),
}
COMPARED = {name: (name, {}) for name in STRATEGIES if name not in EXCLUDED} | MORE
DAILY = {*STRATEGIES, "allreduce, forward", "averaging, momentum kept, all-reduce before"}
# They keep something of each rank alone, or a gradient in flight.
GOING_ON = [
    name for name in COMPARED if any(kind in name for kind in ("averag", "delayed", "gossip", "top-k", "power"))
]
NEVER = {"evaluate_every": 10**6, "checkpoint_every": 10**6}
OFTEN = {"evaluate_every": 3, "checkpoint_every": 1, "keep": 9, "trace": "t.json"}
ITERATIONS, STOPPED = 6, 3  # neither at the end of a period


@pytest.fixture
def run(folder, monkeypatch):
    """run(name, out, size, flag=value...): the checkpoint at the end of a run of a strategy."""
    monkeypatch.setattr(tracing, "WINDOW", (2, 4))

    def to_end(name, out, size=None, **flags):
        base, more = COMPARED[name]
        row = STRATEGIES[base]
        (folder / "net.toml").write_text(NETS[row.nets[0]])
        options = {**DIGITS, "check_collectives": False, "batch": 45, "algorithm": "ring", "iterations": ITERATIONS}
        options |= {"out": out, "resume": "auto", **row.flags, **more, **NEVER, **flags}
        everywhere(size or row.usual, lambda t: start.run_training(t, read_options(None, options), StopFlag()))
        return find_checkpoint(out).checkpoint

    return to_end


def bits(checkpoint):
    """The name of each array of weights and state, with its bits, and the number of updates."""
    kinds = {"weights": checkpoint.weights, **checkpoint.optimizer, "ranks": checkpoint.ranks}
    arrays = {(kind, name): array.tobytes() for kind, each in kinds.items() for name, array in each.items()}
    return arrays | {"step": checkpoint.scalars["step"]}


def test_every_strategy_is_compared_or_has_a_reason():
    assert {name for name, _ in COMPARED.values()} | EXCLUDED == set(STRATEGIES)
    assert all(not STRATEGIES[name].lockstep for name in EXCLUDED)


@pytest.mark.parametrize("name", daily(COMPARED, *DAILY))
def test_who_looks_changes_no_bit_and_a_run_goes_on_as_the_unbroken_one(run, name):
    unbroken = bits(run(name, "unbroken"))
    assert bits(run(name, "watched", **OFTEN)) == unbroken
    if name in GOING_ON:
        saved = f"watched/checkpoints/iteration-{STOPPED:08}.h5"
        assert bits(run(name, "resumed", resume=saved)) == unbroken
        assert not notes_of("resumed")


def notes_of(out):
    """What is said of ranks that begin from a mean."""
    return [each["text"] for each in records(Path(out), "note") if "begin alike" in each["text"]]


@pytest.mark.parametrize("name", ["averaging, momentum kept", "gossip", "top-k"])
def test_another_number_of_ranks_begins_from_the_mean_and_says_so(run, name):
    saved = run(name, "run", iterations=STOPPED)
    size = len(next(iter(saved.ranks.values())))
    run(name, "run", size - 1)
    said = says(", ".join(saved.ranks), f"{size} ranks", f"{size - 1} ranks")
    assert notes_of("run") == [said]


def test_the_mean_is_what_a_checkpoint_has_for_all(run):
    saved = run("averaging, momentum kept", "run", iterations=STOPPED)
    shares = saved.ranks["examples"][:, 0] / saved.ranks["examples"][:, 1]
    assert saved.ranks["examples"].tolist() == [[45, 135]] * 3
    for name, arrays in (("weights", saved.weights), ("momentum", saved.optimizer["momentum"])):
        assert len({row.tobytes() for row in saved.ranks[name]}) == 3
        first = next(iter(arrays.values())).reshape(-1)
        np.testing.assert_allclose(first, (shares @ saved.ranks[name])[: first.size], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "flags"),
    [("gossip", {}), ("averaging", {}), ("averaging", {"average_from": 100}), ("allreduce", {"sync": "allreduce"})],
)
def test_under_another_strategy_each_rank_goes_on_with_its_own_or_all_begin_alike(run, name, flags):
    run("averaging, momentum kept", "run", iterations=STOPPED)
    checkpoint = run(name, "run", **flags)  # ranks that sum gradients are compared at the end
    assert len(notes_of("run")) == (name == "allreduce")
    assert bool(checkpoint.ranks) == (name != "allreduce" and not flags)


def test_a_period_that_another_average_every_ends_makes_its_outer_step(run):
    """Each rank's own weights as the beginning of the next period would end with replicas that differ."""
    run("averaging, an outer step", "run", iterations=STOPPED, average_every=5)
    assert not run("averaging, an outer step", "run", average_every=3).ranks


@pytest.mark.parametrize("name", ["averaging", "gossip"])
def test_an_evaluation_has_the_distance_from_consensus_where_ranks_differ(run, name):
    """Averaging ends a period with the fourth iteration."""
    run(name, "run", evaluate_every=2)
    distances = {each["iteration"]: each["distance"] for each in records(Path("run"), "evaluation")}
    assert distances.keys() == {2, 4, 6} and 0 < distances[2] < 0.1 and 0 < distances[6] < 0.1
    assert (distances[4] is None) == (name == "averaging")


def test_gossip_after_averaging_counts_all_ranks_alike(run):
    run("averaging, momentum kept", "run", size=2, iterations=STOPPED)
    checkpoint = run("gossip", "run", size=2)
    first = next(iter(checkpoint.weights.values())).reshape(-1)
    np.testing.assert_allclose(first, checkpoint.ranks["weights"].mean(0)[: first.size], rtol=1e-6)
