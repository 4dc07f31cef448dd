"""Training with fully connected layers on ranks of their own is training with them on every rank."""

import math
from dataclasses import replace

import numpy as np
import pytest
from small_runs import LOWER_THE_RATE, everywhere, run_of, trained
from strategies import NETS

from ringtrain.errors import DivergedError, StalledError, TransportError
from ringtrain.exchange.model_parallel.activation_messages import GOODBYE, SUMS, ActivationChannel, GroupRows, Header
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.pipeline.fc_messages import BatchCut, messages_of
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


# ── instructions, messages ─────────────────────────────────────────────────────────────────────────────────────
END = (ReduceLoss(), CheckLoss(), Update())


def test_instructions_of_a_rank_with_images():
    send, recv = SendForward, RecvBackward
    assert front_instructions(0, 2) == (ReduceLoss(), NoExamples(), CheckLoss(), Update())
    assert front_instructions(1, 3) == (send(0), recv(0, True), *END)
    work = send(0), send(1), recv(0, False), send(2), recv(1, False), recv(2, True)
    assert front_instructions(3, 2) == (*work, *END)


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
    assert messages_of(5, 7, BatchCut(3, 2, 2, 2)) == [(5, 0, 0), (5, 1, 0), (5, 2, 0), (5, 2, 1)]
    assert [len(messages_of(0, total, BatchCut(3, 4, 1, 3))) for total in (1, 5, 30)] == [1, 5, 12]


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
@pytest.mark.parametrize(("fc_ranks", "iterations"), [(1, 0), (2, 0), (1, 1)])
def test_a_rank_that_does_not_come_is_named(fc_ranks, iterations):
    """By the rank behind, with the message of the iteration that waits; of two that divide columns, the second waits
    for the first one's choice."""

    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline", fc_ranks=fc_ranks)
        with run.batches(t, 0, iterations + 1) as batches:
            for _ in range(iterations):
                run.worker.iterate(next(batches))
            if t.rank < 2:
                return None
            run.exchange.mail.deadline_s = 0.05  # from here on nobody comes
            with pytest.raises(StalledError) as error:
                run.worker.iterate(next(batches))
        return str(error.value)

    _, _, *texts = everywhere(2 + fc_ranks, body)
    message = f"micro-batch 0 of rank 0 in iteration {iterations + 1}"
    awaited = [says("rank 0", message), says(2, "next", "micro-batch")]
    for text, wanted in zip(texts, awaited[:fc_ranks], strict=True):
        assert wanted.matches(text)


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
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5, 12])
def test_each_row_goes_from_the_rank_that_has_it_to_the_rank_that_needs_it(before, after, rows):
    """And its sums back to one rank alone, once. Some ranks have no row, if there are fewer than ranks."""
    width, peers = 2, (range(before), range(before, before + after))
    values = np.arange(rows * width, dtype="float32").reshape(rows, width)
    header = Header(4, 0, 1, rows)

    def body(t):
        mail, first = ActivationChannel(t, ReferenceOps(), 20.0), t.rank < before
        part = GroupRows(t.rank, before) if first else GroupRows(t.rank - before, after)
        forward, back = crossing = mail.crossing(peers[first], 0, part, rows, (width,))
        start, stop = part.cut(rows)
        examples, labels = forward.batch(rows)
        if first:
            examples[...], labels[...] = np.arange(start, stop), np.arange(start, stop) + 100
            mail.send_on(crossing, header, values[start:stop], None)
            assert mail.bytes_sent == (stop - start) * (8 + 4 + 4 * width)
            mail.wait(back)
            gradient, sums = mail.answer(crossing, header)
            assert np.array_equal(gradient, -values[start:stop])
            if start < stop:
                sent, wanted = (f"micro-batch {micro} of rank 0 in iteration 5" for micro in (1, 0))
                with pytest.raises(TransportError, match=says("rank", sent, wanted)):
                    mail.answer(crossing, replace(header, micro=0))
            return sums.tolist()
        mail.expect(forward, rows)
        mail.wait(forward)
        assert examples.tolist() == list(range(start, stop))
        assert labels.tolist() == list(range(start + 100, stop + 100))
        assert np.array_equal(forward.array(rows), values[start:stop])
        back.report(header.id, rows, np.array([stop - start, 1.0, 2.0]) if stop > start else np.zeros(SUMS))
        back.array(rows)[...] = -values[start:stop]
        mail.send(back, rows)
        mail.wait(back)
        return None

    sums = [each for each in LoopbackWorld(before + after).run(body) if each is not None]
    assert np.sum(sums, axis=0).tolist() == [rows, min(rows, after), 2 * min(rows, after)]


def test_headers_follow_one_another():
    headers = [Header(4, 0, micro, 3 + micro, 30, 29) for micro in range(3)]

    def body(t):
        mail = ActivationChannel(t, ReferenceOps(), 20.0)
        if t.rank == 0:
            sender = mail.headers_to((1, 2), 0)
            for header in headers:
                mail.announce(sender, header)
            mail.say_goodbye(sender, 0)
            assert mail.bytes_sent == 4 * 2 * 6 * 8
            return [*headers, Header(0, 0, 0, GOODBYE)]
        receiver, received = mail.headers_from(0, 0), []
        assert receiver.arrived() is None
        while len(received) < 4:
            receiver.listen()
            numbers = receiver.arrived()
            received += [Header(*numbers)] if numbers else []
        return received

    first, *others = LoopbackWorld(3).run(body)
    assert others == [first] * 2 and headers[1].id == (4, 0, 1)
