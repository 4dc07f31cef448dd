"""The contract: the same questions to each strategy of strategies.py."""

import numpy as np
import pytest
from small_runs import (
    DIGITS,
    PAST_A_TAIL,
    apart,
    assert_equal,
    everywhere,
    fake_gpu,
    iterate,
    results,
    run_of,
    same_weights,
    trained,
)
from strategies import NETS, OPTIONS, STRATEGIES, by_default

from ringtrain.errors import CheckpointError, Interrupted
from ringtrain.exchange import catalogue
from ringtrain.train.options import read_options
from ringtrain.train.start import open_run, start
from ringtrain.train.stopping.reasons import JobEnd
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.agree import take_turns
from tests.fakes.turns import OneAtATime
from tests.runs import records
from tests.says import says

LOCKSTEP = {name: row for name, row in STRATEGIES.items() if row.lockstep}
LIKE = {name: row for name, row in LOCKSTEP.items() if row.like is not None}
LEARNING = {name: row for name, row in LOCKSTEP.items() if row.like is None}
BEGUN = 5  # iterations before a checkpoint


def at(row, ranks, net, iterations=PAST_A_TAIL, nodes=1, **flags):
    """(losses, weights, checkpoint) of each rank."""
    return results(ranks, NETS[net], iterations, nodes, dtype="float64", **{**row.flags, **flags})


def alone(row, net, iterations=PAST_A_TAIL, **flags):
    """Those of the one rank whose weights the strategy has."""
    return results(1, NETS[row.alone or net], iterations, dtype="float64", **{**row.like, **flags})[0]


def test_a_new_strategy_of_the_catalogue_is_under_contract_without_a_row_of_its_own():
    exact, other = (by_default("new", catalogue.STRATEGIES[name]) for name in ("master", "gossip"))
    assert set(catalogue.STRATEGIES) <= set(STRATEGIES)
    assert (exact.flags, exact.like, exact.says) == ({"sync": "new", "algorithm": "auto"}, {}, "master on rank 0")
    assert (other.flags, other.like, other.lockstep) == ({"sync": "new"}, None, True)


# ── as one rank ───────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(
            name,
            world,
            id=f"{name}, {world.ranks} ranks, {world.net}, {world.flags} {world.option}",
            marks=() if world.daily else pytest.mark.thorough,
        )
        for name, row in LIKE.items()
        for world in row.worlds
    ],
)
def test_weights_and_losses_are_those_of_one_rank(name, world):
    """With tails, uneven parts, and somebody who looks on the way."""
    row, option = LIKE[name], OPTIONS.get(world.option, {})
    every = at(row, world.ranks, world.net, nodes=world.nodes, settle_at=(1, 7, 8), **world.flags, **option)
    assert_equal(every, alone(row, world.net, **option))


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, row in LIKE.items() for option in OPTIONS if option not in row.cannot]
)
def test_optimizers_clipping_and_micro_batches_are_those_of_one_rank(name, option):
    row, flags = LIKE[name], OPTIONS[option]
    # They make an update of the rounding of a gradient of 0, as before batch norm.
    net = row.nets[option not in ("adamw", "rmsprop")]
    assert_equal(at(row, row.usual, net, bucket_bytes=2000, **flags), alone(row, net, **flags))


@pytest.mark.parametrize("name", LIKE)
def test_ranks_without_examples_change_nothing(name):
    """Batches of 5 on 4 ranks, with a tail of 2, in micro-batches; and of 74, with a tail of 1."""
    row = LIKE[name]
    tails = [(row.nets[1], {"batch": 74, "start": 3, "iterations": 6})]
    if "micro-batches" not in row.cannot:
        tails += [(row.nets[0], {"batch": 5, "start": 58, "iterations": 61, "lr": 0.01, "accumulate": 3})]
    for net, flags in tails:
        assert_equal(at(row, 4, net, **flags), alone(row, net, **flags))


@pytest.mark.parametrize("name", LEARNING)
def test_ranks_without_examples_take_part(name):
    ranks = at(LEARNING[name], 4, "dropout", batch=5, start=58, iterations=61, lr=0.01)
    assert same_weights(ranks) and np.isfinite(ranks[0][1]).all()


@pytest.mark.parametrize("name", ["hybrid", "pipeline"])
def test_the_evaluator_sees_all_weights(name):
    def score(transport, flags):
        run, _ = run_of(transport, NETS[STRATEGIES[name].nets[0]], iterations=3, dtype="float64", **flags)
        iterate(run, transport, 0, 3)
        run.exchange.synchronize()
        scored = run.evaluator.score(run.data.test, 100)
        return scored.accuracy, scored.examples, pytest.approx(scored.loss, rel=1e-10)

    assert everywhere(4, lambda t: score(t, STRATEGIES[name].flags)) == everywhere(1, lambda t: score(t, {})) * 4


@pytest.mark.parametrize("name", ["hybrid", "master", "whole-batch norm"])
def test_a_rehearsal_is_of_one_rank_at_a_time_and_changes_and_sends_nothing(name):
    """A rank that waits for another one would wait for ever."""
    row = STRATEGIES[name]
    accumulate = {} if "micro-batches" in row.cannot else {"accumulate": 2}

    def body(transport):
        run, ops = run_of(transport, NETS[row.nets[0]], iterations=2, **row.flags, **accumulate)
        before = ops.to_host(run.arena.weights)
        with run.batches(transport, 0, 2) as batches:
            batch = next(batches)
            take_turns(transport, lambda: run.worker.rehearse(batch))
            run.exchange.synchronize()
            assert np.array_equal(before, ops.to_host(run.arena.weights))
            assert run.exchange.reducers.traffic().bytes_sent == 0
            assert name == "hybrid" or ops.square_sum(run.arena.grads) > 0  # gradients are made on every rank
            return run.worker.iterate(batch).valid

    assert everywhere(3, body) == [30] * 3


# ── learning, where no iteration is that of one rank ──────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", LEARNING)
def test_it_learns_and_is_not_serial(name):
    """Down to a share of the first loss; serial training gets to 0.1."""
    row = LEARNING[name]
    flags = {"lr": 0.02, "augment": False, "iterations": 80}
    ranks = at(row, 3, "ghost", **flags)
    assert same_weights(ranks)
    assert np.mean(ranks[0][0][-10:]) < row.learns * ranks[0][0][0]
    assert apart(ranks, results(1, NETS["ghost"], dtype="float64", **flags)[0][1]) > 1e-3


@pytest.mark.parametrize("name", LEARNING)
def test_it_can_be_repeated(name):
    row = LEARNING[name]
    again = everywhere(3, lambda t: trained(t, NETS["ghost"], BEGUN, dtype="float64", **row.flags))
    assert again[0][1].tobytes() == at(row, 3, "ghost", BEGUN)[0][1].tobytes()


# ── from a checkpoint ─────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", LIKE)
def test_it_goes_on_at_other_numbers_of_ranks(name):
    row, net = LIKE[name], LIKE[name].nets[0]
    asked = [option for option in ("adamw", "lars") if option not in row.cannot] or [""] * 2
    for ranks, option in zip((row.usual - 1, row.least), asked, strict=True):
        flags = OPTIONS.get(option, {})
        checkpoint = at(row, row.usual, net, BEGUN, **flags)[0][2]
        assert_equal(at(row, ranks, net, start=BEGUN, checkpoint=checkpoint, **flags), alone(row, net, **flags))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, row in LOCKSTEP.items()
        if name in LEARNING or row.keeps
        for option in ("plain", "adamw")
        if option not in row.cannot
    ],
)
def test_it_goes_on_as_the_run_that_wrote_the_checkpoint(name, option):
    """Bit by bit; and near it at another number of ranks, where that counts."""
    row, flags = LOCKSTEP[name], OPTIONS.get(option, {})
    whole = at(row, 3, "ghost", settle_at=(BEGUN,), **flags)
    checkpoint = at(row, 3, "ghost", BEGUN, **flags)[0][2]
    every = at(row, 3, "ghost", start=BEGUN, checkpoint=checkpoint, **flags)
    assert [weights.tobytes() for _, weights, _ in every] == [weights.tobytes() for _, weights, _ in whole]
    assert every[0][0] == whole[0][0][BEGUN:]
    other = at(row, 2, "ghost", start=BEGUN, checkpoint=checkpoint, **flags)
    assert other[0][0][-1] == pytest.approx(whole[0][0][-1], rel=row.near)


@pytest.mark.parametrize("name", [name for name, row in LOCKSTEP.items() if not row.keeps and not row.alone])
def test_a_run_of_all_reduce_goes_on_under_it_and_back(name):
    row, net = LOCKSTEP[name], LOCKSTEP[name].nets[0]
    last = PAST_A_TAIL - 2
    begun = results(2, NETS[net], BEGUN, dtype="float64")[0][2]
    middle = at(row, 4, net, last, start=BEGUN, checkpoint=begun)[0][2]
    ranks = results(3, NETS[net], PAST_A_TAIL, start=last, checkpoint=middle, dtype="float64")
    if name in LIKE:
        assert_equal(ranks, alone(row, net))
    else:
        assert len(ranks[0][0]) == 2 and ranks[0][0][-1] < ranks[0][0][0] + 1  # goes on from what was learnt


# ── on devices ────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "flags"),
    [(name, flags) for name, row in LOCKSTEP.items() for flags in row.devices],
    ids=lambda value: str(value),
)
def test_on_a_device_it_is_bit_by_bit_as_on_the_host(name, flags):
    """With recorded passes, many buckets, and operations beside that are done late, or early."""
    row = LOCKSTEP[name]
    # On a device `auto` takes another algorithm, and so another order of additions.
    algorithm = {} if row.flags.get("sync") in ("master", "server") else {"algorithm": "ring"}
    options = {"bucket_bytes": 500, "segment_bytes": 1024, "settle_at": (3,), **row.flags, **algorithm, **flags}
    net = NETS[row.nets[1]]
    host = results(3, net, 4, **options)

    def on_device(transport, early):
        end, ops = fake_gpu(transport, hasty=early)
        return *trained(end, net, 4, ops=ops, **options)[:2], ops.replays

    for early in (False, True):
        every = everywhere(3, lambda t, e=early: on_device(t, e))
        device = [each for each in every if each[1] is not None]
        assert [losses for losses, *_ in device] == [losses for losses, *_ in host]
        assert [weights.tobytes() for _, weights, _ in device] == [weights.tobytes() for _, weights, _ in host]
        # A pipeline and batches of other sizes record nothing; nor do ranks that serve.
        assert device[0][2] or device[-1][2] or name == "pipeline" or "batch" in flags


# ── from flags to files ───────────────────────────────────────────────────────────────────────────────────────────────
SAYING = {name: row for name, row in STRATEGIES.items() if row.says}
# Options that the header names, too: flags, the header's words, and whether it is exact.
HEADERS = [({"algorithm": "ring", **row.flags}, row.says, row.exact) for row in SAYING.values()] + [
    ({"sync": "server", "staleness": 3}, "server on rank 0, staleness 3", False),
    ({"compress": "top-k", "algorithm": "ring"}, "allreduce with top-k 1 %, error feedback (ring)", False),
    (
        {"sync": "delayed", "compress": "powersgd", "compress_from": 1, "algorithm": "ring"},
        "delayed by one iteration, with PowerSGD of rank 4, error feedback, from iteration 1 (ring)",
        False,
    ),
    (
        {"sync": "averaging", "average_momentum": "keep", "outer_lr": 0.5, "algorithm": "ring"},
        "averaging every 8, momentum: keep, outer momentum 0, rate 0.5 (ring)",
        False,
    ),
    ({"sync": "gossip", "gossip_max_lag": 3, "algorithm": "ring"}, "gossip up to 3 iterations apart (ring)", False),
    ({"wire": "bfloat16", "algorithm": "sliced"}, "allreduce (sliced, rounded to bfloat16 on the wire)", False),
]


@pytest.mark.parametrize(("flags", "words", "exact"), HEADERS, ids=[words for _, words, _ in HEADERS])
def test_the_header_says_which_it_is_and_whether_it_is_exact(train, tmp_path, capsys, flags, words, exact):
    train(out="run", iterations=2, **flags)
    (begun,) = records(tmp_path / "run", "start")
    assert (begun["strategy"], begun["exact"]) == (words, exact)
    said = "exact: equal to training on one rank" if exact else "not exact: differs from training on one rank"
    assert f"{words}, {said}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", [name for name in LOCKSTEP if name in SAYING and SAYING[name].files])
def test_a_run_goes_on_in_its_folder_as_if_it_had_not_stopped(train, tmp_path, name):
    """Stopped in the middle of an epoch and of a period; the unbroken run has a checkpoint there, too."""
    row = LOCKSTEP[name]
    train(out="whole", iterations=6, checkpoint_every=3, **row.flags)
    train(out="parts", iterations=3, **row.flags)
    train(out="parts", iterations=6, resume="auto")
    whole, parts = (records(tmp_path / out, "end")[-1]["weights_sha256"] for out in ("whole", "parts"))
    assert whole == parts


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.keeps is not None])
def test_all_reduce_refuses_a_state_that_is_not_its_own(train, tmp_path, name):
    row = STRATEGIES[name]
    # All-reduce refuses the options of a compression before it looks at what a checkpoint holds.
    later = ("compress_", "residual_")
    train(out="run", iterations=2, **{flag: row.flags[flag] for flag in row.flags if not flag.startswith(later)})
    with pytest.raises(CheckpointError, match=says("--optimizer", "--sync", "--compress", row.keeps, "momentum, step")):
        train(resume="run", iterations=4, sync="allreduce", compress="none")
    assert records(tmp_path / "run", "end")[0]["iterations"] == 2  # nothing was cut off


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def stopped(monkeypatch, victim, **flags):
    """The errors of three ranks, of which ``victim`` is told to stop when it has asked itself often."""

    def end_of(transport, *args):
        asked = iter(range(10**9))
        return JobEnd(15.0 if transport.rank == victim else None, 1.0, lambda: float(next(asked)))

    def ends(transport):
        try:
            start.run_training(transport, read_options(None, flags), StopFlag())
        except Exception as error:
            return error
        return None

    monkeypatch.setattr(open_run, "find_job_end", end_of)
    return OneAtATime(3, monkeypatch).run(ends)  # else the others might have done all before the victim has asked


@pytest.mark.timing
@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.stops])
def test_all_ranks_stop_with_a_checkpoint_that_is_good(monkeypatch, folder, name):
    row = STRATEGIES[name]
    (folder / "net.toml").write_text(NETS[row.nets[0]])
    flags = {**DIGITS, "out": "run", "check_collectives": False, "deadline_s": 60.0, "iterations": 400}
    flags |= {"evaluate_every": 10**6, "checkpoint_every": 10**6, **row.flags}
    errors = stopped(monkeypatch, row.victim, **flags)
    assert [type(error) for error in errors] == [Interrupted] * 3, errors
    assert "s before the end of the job after iteration" in str(errors[0])
    end = records(folder / "run")[-1]
    assert end["reason"] == "interrupted" and 1 <= end["iterations"] < 400
    assert (folder / f"run/checkpoints/iteration-{end['iterations']:08}.h5").exists()
