"""Scaling: figures of rounds by hand, intervals, table, CSV and picture."""

import csv
import io
from functools import partial

import pytest

from ringtrain.report.scaling.figures import median_interval, sample_of, scaling_rows
from ringtrain.report.scaling.shown import csv_text, interval_note, scaling_figure, scaling_table
from ringtrain.show.figures import COLOURS, drawn
from ringtrain.show.tables import plain_lines
from tests.report.test_report_comparison import END, HOT, OLD, of
from tests.says import says


def sample(ranks, number, rate, scaling="strong"):
    batch = 64 if scaling == "strong" else 64 * ranks
    figures = {"images_per_s": rate, "step_s": batch / rate, "exposed_s": 0.001}
    return {"scaling": scaling, "round": number, "ranks": ranks, "nodes": 1, "batch": batch, **figures}


# Round 2 is slow for both: a speed-up is of two runs of one round.
STRONG = [
    sample(ranks, number, rates[ranks - 1])
    for number, rates in enumerate([(100, 180), (50, 95), (110, 209)], start=1)
    for ranks in (1, 2)
]
WEAK = [sample(1, 1, 100, "weak"), sample(4, 1, 360, "weak")]


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_sample_is_from_the_records_of_a_run_that_has_an_end_and_a_rate():
    figures = sample_of(of(ranks=None))
    assert (figures["ranks"], figures["nodes"], figures["batch"], figures["folder"]) == (3, 1, 64, "runs/a")
    assert (figures["images_per_s"], figures["step_s"]) == (1000.0, 0.064)
    ranks = {"exposed_s": [1.0, 2.0, 0.5], "updates": [10, 10, 0]}  # a server has no examples
    assert sample_of(of(ranks=ranks))["exposed_s"] == pytest.approx(0.15)
    assert sample_of(of(ranks=None))["exposed_s"] is None
    for run in (OLD, HOT, of(end={**END, "reason": "interrupted"}), of(end={**END, "images_per_s": 0.0})):
        assert sample_of(run) is None


def test_speedups_are_of_the_same_round_and_efficiency_against_the_fewest_ranks_of_its_scaling():
    one, two = scaling_rows(STRONG)
    assert (one["ranks"], one["speedup"], one["speedup_low"]) == (1, 1.0, None)
    assert (two["speedup"], two["speedup_low"], two["speedup_high"]) == (1.9, 1.8, 1.9)
    assert (two["efficiency"], two["images_per_s"], two["rounds"]) == (0.95, 180, 3)
    assert (two["images_per_s_low"], two["images_per_s_high"], two["confidence"]) == (95, 209, 0.75)
    rows = scaling_rows([sample(2, 1, 200), sample(4, 1, 300), sample(4, 2, 1000)])
    assert [(row["ranks"], row["speedup"], row["efficiency"]) for row in rows] == [(2, 1, 1), (4, 1.5, 0.75)]
    assert rows[1]["rounds"] == 2  # of which one has no base
    rows = scaling_rows([*WEAK, *STRONG])
    assert [(row["scaling"], row["ranks"], row["batch"]) for row in rows] == [
        ("strong", 1, 64), ("strong", 2, 64), ("weak", 1, 64), ("weak", 4, 256)
    ]  # fmt: skip
    assert (rows[3]["speedup"], rows[3]["efficiency"], rows[3]["images_per_s_low"]) == (3.6, 0.9, None)


def test_the_interval_of_a_median_is_of_order_statistics():
    for count, wanted in (
        (0, (None, None, None, None)),
        (1, (1, None, None, None)),
        (2, (1.5, 1, 2, 0.5)),
        (3, (2, 1, 3, 0.75)),
        (8, (4.5, 1, 8, 1 - 2 / 256)),
        (9, (5, 2, 8, 1 - 2 * (1 + 9) / 512)),  # the least and the greatest are not needed for 95 %
    ):
        assert median_interval([float(k) for k in range(count, 0, -1)]) == wanted


# ── table and picture ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_table_its_note_and_csv():
    lines = [" ".join(line.split()) for line in plain_lines(scaling_table(scaling_rows([*WEAK, *STRONG])))]
    assert lines[3] == "strong 2 1 64 180 [95, 209] 356 1.90 [1.80, 1.90] 95 1 [1, 1]"
    assert lines[5] == "weak 4 1 256 360 711 3.60 90 1"
    assert interval_note(scaling_rows(WEAK)) == says("round", "intervals")
    assert interval_note(scaling_rows([*WEAK, *STRONG])) == says("75", 3)
    one, two = csv.DictReader(io.StringIO(csv_text(scaling_rows(STRONG))))
    assert (two["ranks"], two["speedup"], two["confidence"], one["speedup_low"]) == ("2", "1.9", "0.75", "")


def curves(rows):
    """The lines of speed-ups by their labels, and the medians with intervals under their labels."""
    axes = scaling_figure(rows, [{"model": "lenet", "data": "fashion", "hosts": ["a host"]}]).axes[0]
    return {
        label: getattr(handle, "lines", (handle,))[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }


def test_the_picture_has_a_curve_for_each_kind_of_scaling():
    rows = scaling_rows([*WEAK, *STRONG])
    lines = curves(rows)
    ideal, strong, weak = sorted(lines)
    assert (ideal, strong, weak) == ("ideal", says("strong", "global"), says("weak", "same"))
    assert list(lines[strong].get_ydata()) == [1.0, 1.9] and lines[strong].get_marker() == "o"
    make = partial(scaling_figure, rows, [{"model": "lenet", "data": "fashion", "hosts": ["a host"]}])
    text = drawn(make, "svg").decode()
    wanted = (*lines, "1 rank", "lenet on fashion", "a host")
    assert all(f"{word} -->" in text for word in wanted)
    assert all(text.count(f"stroke: {colour}") > 1 for colour in COLOURS[:2])
    assert drawn(make, "pdf").startswith(b"%PDF")
