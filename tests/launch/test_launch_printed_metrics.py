"""Scores in the lines that a script prints."""

import io

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch.printed_metrics import MetricLines, parse_metric, values_in
from tests.says import says

METRICS = [
    parse_metric("step=step ([0-9]+)"),
    parse_metric("loss=loss[ =]+(\\S+)"),
    parse_metric("accuracy=acc ([^ ,]+)"),
]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("step 20 loss 2.8628", {"step": 20.0, "loss": 2.8628}),
        ("loss = 1e-3, acc 97.5%", {"accuracy": 0.975}),  # the comma is no number
        ("loss=0.5 acc 0.25", {"loss": 0.5, "accuracy": 0.25}),
        ("loss none", {}),
        ("epoch 3", {}),
    ],
)
def test_numbers_of_a_line(line, values):
    assert values_in(line, METRICS) == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss", ("--metric 'loss'", "one group")),
        ("los=a (b)", ("'los'", "'loss'")),
        ("loss=a [b", ("loss=a [b", "one group")),
        ("loss=a b", ("loss=a b", "one group")),
        ("loss=(a) (b)", ("loss=(a) (b)", "one group")),
    ],
)
def test_what_is_no_metric_is_named(text, words):
    with pytest.raises(UsageError, match=says(*words)):
        parse_metric(text)


def test_lines_are_looked_at_when_they_are_whole_and_pass_as_they_are():
    stream, seen = io.StringIO(), []
    lines = MetricLines(stream, METRICS, seen.append)
    for text in ("step 1 lo", "ss 3.5\nstep", " 2 loss 2.5\rstep 3", " and no end"):
        assert lines.write(text) == len(text)
    lines.flush()  # of the stream itself
    assert seen == [{"step": 1.0, "loss": 3.5}, {"step": 2.0, "loss": 2.5}]
    assert stream.getvalue() == "step 1 loss 3.5\nstep 2 loss 2.5\rstep 3 and no end"
