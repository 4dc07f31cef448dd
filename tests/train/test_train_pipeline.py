"""Training with fully connected layers on ranks of their own is training with them on every rank."""

import math
from dataclasses import replace

import numpy as np
import pytest
from small_runs import LOWER_THE_RATE, everywhere, run_of, trained
from strategies import NETS

from ringtrain.errors import DivergedError, StalledError, TransportError
from ringtrain.exchange.model_parallel.activation_messages import GOODBYE, SUMS, ActivationChannel, GroupRows, Header
from ringtrain.nn.base import Pass
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.pipeline.fc_messages import BatchCut, StageMessage, messages_of
from ringtrain.train.pipeline.fc_passes import TapePool
from ringtrain.train.pipeline.front_stage import RecvBackward, SendForward, front_instructions
from ringtrain.train.step.instructions import CheckLoss, NoExamples, ReduceLoss, Update
from tests.loopback.world import LoopbackWorld
from tests.says import says


@pytest.mark.parametrize("net", ["two", "three"])
def test_sums_are_the_same_in_every_run(net):
    """Of columns, and of whole layers."""

    def run(t):
        *_, checkpoint = trained(t, NETS[net], 8, fc="pipeline", fc_ranks=2, accumulate=3, lr=0.01)
        return checkpoint and {name: weight.tobytes() for name, weight in checkpoint.weights.items()}

    assert everywhere(5, run) == everywhere(5, run)


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


def test_a_rank_in_front_names_no_layer_of_an_earlier_pass():
    """Each micro-batch has a context of its own; that of a rehearsal keeps its last layer."""

    def body(t):
        (run, _), words = run_of(t, NETS["dropout"], fc="pipeline"), []

        def perform(instruction):
            run.worker.run(instruction)
            words.append(t.activity.words())

        run.worker.hooks.perform = perform
        with run.batches(t, 0, 1) as batches:
            batch = next(batches)
            run.worker.rehearse(batch)
            run.worker.iterate(batch)
        return words

    assert everywhere(2, body)[0][:2] == [SendForward.doing, RecvBackward.doing]


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
@pytest.mark.parametrize("net", ["two", "three"])
def test_a_loss_that_is_not_finite_ends_all_and_names_the_layer(net):
    """Of which an FC rank has spoilt its own columns."""
    where = says("'fc1'", 0)

    def body(t):
        run, ops = run_of(t, NETS[net], fc="pipeline", fc_ranks=2)
        spans = {span.name: span for span in run.arena.spans}
        if t.rank in run.roles.parts and "fc1.bias" in spans:
            ops.fill(run.arena.weight(spans["fc1.bias"])[-1:], np.nan)
        with (
            run.batches(t, 0, 2) as batches,
            pytest.raises(DivergedError, match=LOWER_THE_RATE + says(f"{math.nan:g}", where)) as error,
        ):
            for batch in batches:
                run.worker.iterate(batch)
        return error.value.everywhere

    assert all(everywhere(4, body))


@pytest.mark.timing
@pytest.mark.parametrize("fc_ranks", [1, 2])
def test_a_rank_that_does_not_come_is_named(fc_ranks):
    """By the rank behind; of two that divide columns, the second waits for the first one's choice."""
    message = "micro-batch 0 of rank 0 in iteration 1"

    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline", fc_ranks=fc_ranks)
        run.exchange.mail.deadline_s = 0.05  # from here on nobody comes
        if t.rank < 2:
            return None
        with run.batches(t, 0, 1) as batches, pytest.raises(StalledError) as error:
            run.worker.iterate(next(batches))
        return str(error.value)

    _, _, *texts = everywhere(2 + fc_ranks, body)
    awaited = [says("rank 0", message), says(2, "next", "micro-batch")]
    for text, wanted in zip(texts, awaited[:fc_ranks], strict=True):
        assert wanted.matches(text)


@pytest.mark.timing
def test_the_message_that_is_named_is_of_the_iteration_that_waits():
    """Rank 0 trains for one iteration, and rank 2 waits for its second."""

    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline")
        with run.batches(t, 0, 2) as batches:
            run.worker.iterate(next(batches))
            if t.rank < 2:
                return None
            run.exchange.mail.deadline_s = 0.05  # from here on nobody comes
            with pytest.raises(StalledError) as error:
                run.worker.iterate(next(batches))
        return str(error.value)

    message = "micro-batch 0 of rank 0 in iteration 2"
    assert says("rank 0", message).matches(everywhere(3, body)[2])


def test_a_rank_in_another_iteration_is_named():
    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline")
        run.exchange.mail.deadline_s = 1.0  # the last rank gives no answer
        with run.batches(t, 0, 1) as batches, pytest.raises((TransportError, StalledError)) as error:
            run.worker.iterate(replace(next(batches), iteration=4 if t.rank == 0 else 0))
        return str(error.value)

    received, wanted = (f"micro-batch 0 of rank 0 in iteration {number}" for number in (5, 1))
    assert everywhere(2, body)[1] == says(0, received, wanted)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_another_message_than_the_one_that_is_due():
    def body(t):
        mail = ActivationChannel(t, ReferenceOps(), 5.0)
        letter = mail.back([1 - t.rank], 0, GroupRows(), 2, 3)
        if t.rank == 0:
            letter.report((4, 0, 1), 2, np.array([1.0, 2.0, 3.0]))
            mail.send(letter, 2)
            assert mail.bytes_sent == 8 * (3 + 3) + 4 * 6
            mail.wait(letter)
        else:
            mail.expect(letter, 2)
            mail.wait(letter)
            mail.check(letter, (4, 0, 1), 2)
            assert letter.sums(2).tolist() == [1, 2, 3]
            with pytest.raises(TransportError) as error:
                mail.check(letter, (4, 0, 0), 2)
            received, wanted = "micro-batch 1 of rank 0 in iteration 5", "micro-batch 0 of rank 0 in iteration 5"
            assert str(error.value) == says(0, received, wanted)

    LoopbackWorld(2).run(body)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5, 12])
def test_each_row_goes_from_the_rank_that_has_it_to_the_rank_that_needs_it(before, after, rows):
    """And its sums back to one rank alone, once. Some ranks have no row, if there are fewer than ranks."""
    width, peers = 2, (range(before), range(before, before + after))
    values = np.arange(rows * width, dtype="float32").reshape(rows, width)

    def body(t):
        mail, first = ActivationChannel(t, ReferenceOps(), 20.0), t.rank < before
        part = GroupRows(t.rank, before) if first else GroupRows(t.rank - before, after)
        forward = mail.forward(peers[first], 0, part, rows, width)
        back = mail.back(peers[first], 0, part, rows, width)
        start, stop = part.cut(rows)
        if first:
            forward.examples[: stop - start] = np.arange(start, stop)
            forward.labels[: stop - start] = np.arange(start, stop) + 100
            forward.array(rows, (width,))[...] = values[start:stop]
            mail.expect(back, rows)
            mail.send(forward, rows)
            mail.wait(back)
            mail.check(back, (0, 0, 0), rows)
            assert np.array_equal(back.array(rows, (width,)), -values[start:stop])
            mail.wait(forward)
            return back.sums(rows).tolist()
        mail.expect(forward, rows)
        mail.wait(forward)
        assert forward.examples[: stop - start].tolist() == list(range(start, stop))
        assert forward.labels[: stop - start].tolist() == list(range(start + 100, stop + 100))
        assert np.array_equal(forward.array(rows, (width,)), values[start:stop])
        back.report((0, 0, 0), rows, np.array([stop - start, 1.0, 2.0]) if stop > start else np.zeros(SUMS))
        back.array(rows, (width,))[...] = -values[start:stop]
        mail.send(back, rows)
        mail.wait(back)
        return None

    sums = [each for each in LoopbackWorld(before + after).run(body) if each is not None]
    assert np.sum(sums, axis=0).tolist() == [rows, min(rows, after), 2 * min(rows, after)]


def test_headers_follow_one_another():
    headers = [Header(4, 0, micro, 3 + micro, 30, 29) for micro in range(3)] + [Header(0, 0, 0, GOODBYE)]

    def body(t):
        mail = ActivationChannel(t, ReferenceOps(), 20.0)
        if t.rank == 0:
            sender = mail.header_to((1, 2), 0)
            for header in headers:
                sender.send(header)
            sender.wait()
            return headers
        receiver, received = mail.header_from(0, 0), []
        assert receiver.arrived() is None
        for _ in headers:
            receiver.listen()
            header = None
            while header is None:
                header = receiver.arrived()
            received.append(header)
        return received

    assert LoopbackWorld(3).run(body) == [headers] * 3
    assert headers[1].id == (4, 0, 1)
