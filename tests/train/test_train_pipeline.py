"""Training with fully connected layers on ranks of their own is training with them on every rank."""

import math

import numpy as np
import pytest
from small_runs import ITERATIONS, PAST_A_TAIL, apart, everywhere, results, run_of, trained
from strategies import NETS

from ringtrain.errors import DivergedError, StalledError, TransportError
from ringtrain.exchange import texts as exchange_texts
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.nn.base import Pass
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train import texts as train_texts
from ringtrain.train.pipeline.fc_stage import BatchCut, StageMessage, TapePool, messages_of
from ringtrain.train.pipeline.front_stage import RecvBackward, SendForward, front_instructions
from ringtrain.train.step.instructions import CheckLoss, NoExamples, ReduceLoss, Update
from ringtrain.transport.threads.loopback import LoopbackWorld

# Three fully connected layers, with random numbers by example and statistics by ghost batch among them.
FLAGS = {"lr": 0.01, "dtype": "float64"}
NET = NETS["three"]


def pipeline(size, iterations=PAST_A_TAIL, fc_ranks=1, **flags):
    return results(size, NET, iterations, **{**FLAGS, "fc": "pipeline", "fc_ranks": fc_ranks, **flags})


def serial(iterations=PAST_A_TAIL, **flags):
    return results(1, NET, iterations, **{**FLAGS, **flags})[0]


def assert_is(found, expected):
    """On every rank, at the end; and the losses on the way."""
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, expected[1]) <= 1e-12
    for losses, *_ in found:
        np.testing.assert_allclose(losses, expected[0], rtol=1e-11)


def test_sums_are_the_same_in_every_run():
    def run(t):
        return trained(t, NET, 8, fc="pipeline", fc_ranks=2, accumulate=3, lr=0.01)[1].tobytes()

    assert everywhere(5, run) == everywhere(5, run)


# ── updates at every message ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("flags", [{}, {"optimizer": "adamw", "lr": 0.002}])
def test_each_of_one_message_is_exact(flags):
    assert_is(pipeline(2, fc_update="micro-batch", iterations=20, **flags), serial(iterations=20, **flags))


@pytest.mark.parametrize("fc_ranks", [1, 2])
def test_each_of_several_comes_near(fc_ranks):
    found = pipeline(3 + fc_ranks - 1, ITERATIONS, fc_ranks, accumulate=2, fc_update="micro-batch")
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert 1e-6 < apart(found, serial(ITERATIONS)[1]) < 0.3
    assert found[0][0][-1] < 0.7 * found[0][0][0]


def test_each_goes_on_as_if_it_had_not_stopped():
    flags = {"optimizer": "adamw", "lr": 0.002, "accumulate": 3, "fc_update": "micro-batch", "fc_in_flight": 1}
    whole = pipeline(2, iterations=12, settle_at=(6,), **flags)
    begun = pipeline(2, iterations=6, **flags)[0][2]
    parts = pipeline(2, iterations=12, start=6, found=begun, **flags)
    assert [weights.tobytes() for _, weights, _ in parts] == [weights.tobytes() for _, weights, _ in whole]


# ── instructions, messages, tapes ─────────────────────────────────────────────────────────────────────────────────────
END = (ReduceLoss(), CheckLoss(), Update())


def test_instructions_of_a_rank_with_images():
    assert front_instructions(0, 2) == (ReduceLoss(), NoExamples(), CheckLoss(), Update())
    assert front_instructions(1, 3) == (SendForward(0), RecvBackward(0, True), *END)
    assert front_instructions(3, 2) == (
        *(
            SendForward(0),
            SendForward(1),
            RecvBackward(0, False),
            SendForward(2),
            RecvBackward(1, False),
            RecvBackward(2, True),
        ),
        *END,
    )


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 2, 3, 7])
def test_so_many_are_away_and_no_more(micro, in_flight):
    away, most = set(), 0
    for instruction in front_instructions(micro, in_flight):
        match instruction:
            case SendForward(number):
                away.add(number)
            case RecvBackward(number, last):
                away.remove(number)
                assert last == (number == micro - 1)
        most = max(most, len(away))
    assert not away and most == min(micro, in_flight)


def test_messages_of_an_iteration_are_in_one_order_and_whole():
    assert messages_of(7, BatchCut(places=3, parts=2, grain=2, capacity=2)) == [
        StageMessage(0, 0, 2), StageMessage(0, 1, 2), StageMessage(0, 2, 2), StageMessage(1, 2, 1),
    ]  # fmt: skip
    for total in (1, 5, 30):
        assert sum(message.count for message in messages_of(total, BatchCut(3, 4, 1, 3))) == total


def test_tapes_are_used_again_and_bounded():
    pool = TapePool(ReferenceOps(), 2)
    first = pool.take((0, 0, 0))
    assert isinstance(first, Pass) and pool.take((0, 1, 0)) is not first
    with pytest.raises(RuntimeError, match="micro-batch 0 of rank 1 in iteration 1 has a tape already"):
        pool.take((0, 1, 0))
    with pytest.raises(RuntimeError, match="micro-batch 3 of rank 0 in iteration 1 wants a tape, and all 2 are taken"):
        pool.take((0, 0, 3))
    pool.give((0, 0, 0))
    assert pool.take((0, 0, 3)) is first and pool.made == 2


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_loss_that_is_not_finite_ends_all_and_names_the_layer():
    def body(t):
        with pytest.raises(
            DivergedError,
            match=train_texts.LOSS.pattern(loss=math.nan, where=train_texts.FIRST_LAYER(layer="fc2", rank=0)),
        ):
            run, ops = run_of(t, NET, fc="pipeline", fc_ranks=2)
            spans = {span.name: span for span in run.arena.spans}
            if t.rank == 2:
                ops.fill(run.arena.weight(spans["fc2.bias"]), np.nan)
            with run.batches(t, 0, 2) as batches:
                for batch in batches:
                    run.worker.iterate(batch)

    everywhere(3, lambda t: body(t))


@pytest.mark.timing
def test_a_rank_that_does_not_come_is_named():
    def body(t):
        run, _ = run_of(t, NET, fc="pipeline")
        run.exchange.mail._deadline_s = 0.05  # from here on nobody comes
        if t.rank == 2:
            with run.batches(t, 0, 1) as batches, pytest.raises(StalledError) as error:
                run.worker.iterate(next(batches))
            assert "waiting for rank 0 to send micro-batch 0 of rank 0 in iteration 1" in str(error.value)

    everywhere(3, body)


def test_another_message_than_the_one_that_is_due():
    def body(t):
        mail = ActivationChannel(t, ReferenceOps(), 5.0)
        letter = mail.forward(1 - t.rank, 0, 2, 3)
        if t.rank == 0:
            mail.address(letter, (4, 0, 1))
            mail.send(letter, 2)
            assert mail.bytes_sent == 8 * (3 + 2) + 4 * 2 + 4 * 6
        else:
            mail.expect(letter, 2)
            mail.wait(letter)
            mail.check(letter, (4, 0, 1))
            with pytest.raises(TransportError) as error:
                mail.check(letter, (4, 0, 0))
            found, wanted = "micro-batch 1 of rank 0 in iteration 5", "micro-batch 0 of rank 0 in iteration 5"
            assert str(error.value) == exchange_texts.OTHER_MESSAGE(rank=0, found=found, wanted=wanted)

    LoopbackWorld(2).run(body)
