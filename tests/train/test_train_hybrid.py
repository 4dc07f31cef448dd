"""Training with fully connected layers divided among ranks is training with all of them everywhere."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, PAST_A_TAIL, apart, diverges, everywhere, iterate, results, run_of
from strategies import FLAT, LAST, MASTER, OPTIONS, SERVER, TWO

from ringtrain.errors import ConfigError
from tests.says import says
from tests.tiers import daily


def test_a_loss_that_is_not_finite_is_explained():
    def body(transport):
        run, ops = run_of(transport, TWO, iterations=2, fc="hybrid", accumulate=2)
        span = next(span for span in run.arena.spans if span.name == "fc1.bias")
        ops.upload(np.full(span.shape, np.nan, ops.dtype), run.arena.weight(span))
        return diverges(run, transport, 1, "'fc1'")

    assert all(everywhere(3, body))


def test_ranks_without_examples_change_nothing():
    """Batches of 5 in three micro-batches, of which some are empty on a rank, and some on all; the last has 2."""
    flags = {"dtype": "float64", "batch": 5, "start": 58, "lr": 0.01, "accumulate": 3, "clip_norm": 0.1}
    one = results(1, TWO, 61, **flags)[0][1]
    assert apart(results(4, TWO, 61, fc="hybrid", **flags), one) <= 1e-12


STAGES = (4, {"fc": "hybrid"}), (3, MASTER), (2, {"fc": "hybrid"}), (2, SERVER), (5, {"fc": "hybrid"})


@pytest.mark.parametrize("option", daily(OPTIONS, "nesterov, clipped", "clipped lamb"))
def test_a_run_goes_on_at_other_numbers_of_ranks_and_by_other_exchanges(option):
    flags, checkpoint, start = {"dtype": "float64", **OPTIONS[option]}, None, 0
    for ranks, inner in STAGES:
        stop = start + PAST_A_TAIL // len(STAGES)
        ended = results(ranks, TWO, stop, start=start, checkpoint=checkpoint, **inner, **flags)
        checkpoint, start = ended[0][2], stop
    assert apart(ended, results(1, TWO, start, **flags)[0][1]) <= 1e-12


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [2, 4])
def test_what_is_sent_is_the_formula(size):
    """Features of 96, columns 24 and 12, batch 32: every rank has as much. What else is sent is sums of the rest, and
    the index of each example."""
    net = TWO.replace("units = 21", "units = 24").replace("units = 10", "units = 12")

    def sent(transport, **flags):
        run, _ = run_of(transport, net, batch=32, synthetic=True, data=None, augment=False, **flags)
        iterate(run, transport, 0, 3)
        before = run.exchange.reducers.traffic().bytes_sent
        run.exchange.synchronize()
        assert run.exchange.reducers.traffic().bytes_sent == before
        return before, sum(span.stop - span.start for span in run.arena.spans if span.name[:2] == "fc"), run

    for data, divided in zip(
        everywhere(size, lambda t: sent(t, algorithm="sliced")),
        everywhere(size, lambda t: sent(t, algorithm="sliced", fc="hybrid")),
        strict=True,
    ):
        rest = data[0] - 3 * 4 * 2 * (size - 1) / size * data[1]
        columns = (size - 1) / size * 32 * (4 * (2 * 96 + 2 * 24 + 2 * 12 / size) + 8)
        assert divided[0] == pytest.approx(3 * columns + rest, rel=1e-3)


def test_the_header_says_what_it_saves():
    def facts(size, **flags):
        return everywhere(size, lambda t: run_of(t, TWO, fc="hybrid", **flags)[0])[0].exchange.facts

    two = facts(2)
    assert (two.name, two.header, two.exact) == ("allreduce", says("fc", "hybrid"), True)
    assert two.notes[0] == (
        "hybrid: columns of fc1, fc are divided among 2 ranks: a rank sends on average 3,660 numbers for them in an "
        "iteration, with --fc data 2,257: at this batch --fc data sends less"
    )
    sends = "sends on average 963 numbers for them in an iteration, with --fc data "
    assert facts(3, batch=6).notes[0].endswith(f"{sends}3,009: 68% less")
    assert facts(1).notes[0].endswith("among 1 ranks: one rank has all columns, and sends nothing")


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
CONVOLUTIONAL = DROPOUT_NET.replace(
    FLAT + LAST,
    '  { name = "conv2", kind = "Conv2D", channels = 10, kernel = 1 },\n  { name = "mean", kind = "GlobalAvgPool" },\n',
)


@pytest.mark.parametrize(
    ("net", "size", "message"),
    [
        (CONVOLUTIONAL, 1, "layers at the end of a model, and 'small' has none there: leave --fc at data"),
        (DROPOUT_NET, 11, "'fc' has 10, fewer than the 11 ranks: use at most 10, or leave --fc at data"),
    ],
)
def test_what_cannot_be_divided(net, size, message):
    def body(transport):
        with pytest.raises(ConfigError, match=message):
            run_of(transport, net, fc="hybrid")

    everywhere(size, body)
