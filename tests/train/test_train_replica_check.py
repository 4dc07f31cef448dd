"""Replicas that must be equal and finite: one bit that differs is found, and named to the element."""

import re
import socket

import numpy as np
import pytest
from small_runs import DIGITS, LOWER_THE_RATE

from ringtrain.errors import DivergedError, ReplicaError
from ringtrain.exchange.replica_check import _narrow
from ringtrain.train.start import open_run
from ringtrain.train.start import start as starting
from tests.loopback.world import LoopbackWorld
from tests.runs import start
from tests.says import says

HOST = socket.gethostname()


@pytest.fixture
def train(folder, monkeypatch):
    """train(size, spoil, flag=value...): a run on threads, of which ``spoil(run, rank)`` is told before it begins."""
    assemble = open_run.assemble

    def run(size, spoil, **flags):
        def assembled(config, model, data, transport, *more):
            assembly = assemble(config, model, data, transport, *more)
            spoil(assembly, transport.rank)
            return assembly

        monkeypatch.setattr(open_run, "assemble", assembled)
        monkeypatch.setattr(starting.StopFlag, "install", lambda self: self)  # signals are the main thread's
        flags = {**DIGITS, "check_collectives": False, "out": "run", **flags}
        LoopbackWorld(size).run(lambda t: start(t, None, flags))

    return run


def before_iteration(number, change):
    """``change(run)`` on rank 1 when iteration ``number`` (from 1) begins."""

    def spoil(run, rank):
        if rank == 1:
            run.worker.hooks.before_iteration = lambda iteration: change(run) if iteration + 1 == number else None

    return spoil


def flip_a_bit(run):
    """The lowest of element [0, 1, 0, 2] of conv1.weight, which is number 5 of the arena, and of one behind it."""
    bits = run.arena.weights[5:6].view(np.uint32)
    bits ^= 1


def test_one_bit_on_one_rank_is_named_with_its_host_and_element(train):
    with pytest.raises(ReplicaError) as raised:
        train(3, before_iteration(4, flip_a_bit), iterations=12, check_replicas=4)
    text = str(raised.value)
    assert text.startswith(
        f"replicas differ after iteration 4: rank 1 ({HOST}) has other bits than ranks 0, 2 ({HOST}), which agree. The "
        "first difference is in weights of 'conv1.weight', elements "
    )
    assert re.search(r"at \[\d, \d, \d, \d\] there is \S+ on ranks 0, 2; \S+ on rank 1\. Every rank made", text)
    assert raised.value.exit_code == 3 and raised.value.everywhere
    with pytest.raises(ReplicaError, match=says("equally", "right")):  # of two ranks nobody knows who is right
        train(2, before_iteration(2, flip_a_bit), iterations=2, out="two")


def test_replicated_state_is_compared_too(train):
    def change(run):
        (momentum,) = run.exchange.owned_state.arrays()
        momentum.array[run.arena.spans[-1].start] += 1

    def spoil(run, rank):
        if rank == 1:
            finish = run.exchange.finish
            run.exchange.finish = lambda iteration, lr: (finish(iteration, lr), change(run))

    with pytest.raises(ReplicaError, match=says("--resume", "momentum", "'fc.bias'", 0, 10, [0])):
        train(3, spoil, iterations=1, lr=1e-30)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("places", [(0, 0), (7, 700), (255, 256), (999, 999), (0, 999)])
def test_the_first_and_the_last_element_are_found(size, places):
    def body(t):
        values = np.zeros(1000, "f4")
        if t.rank == size - 1 and size > 1:
            values[list(places)] = 1
        return (_narrow(t, values), 999 - _narrow(t, values[::-1])) if size > 1 else places

    assert LoopbackWorld(size).run(body) == [places] * size


# ── a pipeline ────────────────────────────────────────────────────────────────────────────────────────────────
PIPELINE = {"fc": "pipeline", "fc_ranks": 2}  # which divide the columns of the only fully connected layer


def test_ranks_in_front_of_a_pipeline_are_compared_while_the_others_take_part(train):
    with pytest.raises(ReplicaError) as raised:
        train(5, before_iteration(2, flip_a_bit), iterations=4, check_replicas=2, **PIPELINE)
    text = str(raised.value)
    assert text.startswith("replicas differ after iteration 2: rank 1 ") and "conv1.weight" in text
    assert f"other bits than ranks 0, 2 ({HOST})" in text and raised.value.everywhere
    train(3, lambda run, rank: None, iterations=2, check_replicas=1, out="one", **PIPELINE)  # one is compared with none


@pytest.mark.parametrize("kept", ["weights", "momentum"])
def test_columns_that_are_not_finite_are_named_with_the_rank_that_has_them(train, kept):
    """Of weights the ranks in front have a copy by then."""

    def spoil_it(run):
        momentum = run.exchange.owned_state.arrays()[0].array
        (run.arena.weights if kept == "weights" else momentum)[3:4] = np.nan

    with pytest.raises(DivergedError) as raised:
        train(4, spoilt_after(2, 3, spoil_it), iterations=2, check_replicas=2, **PIPELINE)
    ranks = f"ranks 0, 1, 3 ({HOST})" if kept == "weights" else f"rank 3 ({HOST})"
    assert str(raised.value) == LOWER_THE_RATE + says(kept, "'fc.weight'", 2, "after", "iteration", ranks)


# ── not finite ────────────────────────────────────────────────────────────────────────────────────────────────
def spoilt_after(number, rank_of, spoil_it):
    def spoil(run, rank):
        if rank == rank_of:
            finish = run.exchange.finish
            run.exchange.finish = lambda i, lr: (finish(i, lr), spoil_it(run) if i + 1 == number else None)

    return spoil


def test_state_that_one_rank_alone_keeps_is_looked_at(train, tmp_path):
    """Of sharded each rank keeps a slice; the weights are good still."""

    def spoil_it(run):
        (momentum,) = run.exchange.owned_state.arrays()
        momentum.array[0] = np.nan

    with pytest.raises(DivergedError) as raised:
        train(3, spoilt_after(2, 2, spoil_it), iterations=2, sync="sharded", check_replicas=2)
    wanted = says("momentum", 2, "after", "iteration", f"rank 2 ({HOST})")
    assert str(raised.value) == LOWER_THE_RATE + wanted
    assert raised.value.exit_code == 3
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize("check", [2, 0, None])
def test_weights_are_looked_at_before_they_are_saved_whatever_is_asked_for(train, check):
    def spoil_it(run):
        run.arena.weight(run.arena.spans[1])[0] = np.inf
        run.arena.grad(run.arena.spans[2])[0] = np.nan

    with pytest.raises(DivergedError) as raised:
        train(2, spoilt_after(2, 1, spoil_it), iterations=2, check_replicas=check, optimizer="sgd")
    wanted = says("weights", "'conv1.bias'", 2, "after", "iteration", f"rank 1 ({HOST})", "'fc.weight'")
    assert str(raised.value) == LOWER_THE_RATE + wanted


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "flags, checked",
    [
        ({"check_replicas": 3}, ["at the start", 3, 6, 7]),
        ({"check_replicas": 0}, ["at the start", 7]),
        ({"checkpoint_every": 4}, ["at the start", 4, 7]),
        ({"batch": 480}, ["at the start", 3, 6, 7]),  # 1437 examples: three iterations an epoch
    ],
    ids=["every 3", "never", "checkpoints", "epochs"],
)
def test_when_replicas_are_compared(train, flags, checked):
    compared = []

    def spoil(run, rank):
        if rank == 0:
            check = run.replicas._digests
            when = lambda: run.worker._batch.batch.iteration + 1 if run.worker.updates else "at the start"  # noqa: E731
            run.replicas._digests = lambda kept: (
                compared.append(when()) if kept.name == "weights" else None,
                check(kept),
            )[1]

    train(2, spoil, iterations=7, evaluate_every=7, **flags)
    assert compared == checked
