"""Runs side by side: figures, notes, the table at several widths, the picture."""

import csv
import io
import re
from dataclasses import replace
from functools import partial

import pytest
from matplotlib.image import imread

from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.comparison.plot import comparison_figure
from ringtrain.report.comparison.rows import FailedVariant, notes_of, rows_of
from ringtrain.report.comparison.scores import ACCURACY
from ringtrain.report.comparison.table import GROUPS, NAME, csv_text, format_figures
from ringtrain.show.figures import COLOURS, check_picture, write_picture
from ringtrain.show.tables import NOTHING, fitting_tables, plain_lines
from tests.report.conftest import has
from tests.says import says

START = {
    "strategy": "allreduce (ring)", "exact": True, "model": "lenet", "data": "fashion", "ranks": 3, "nodes": 1,
    "batch": 64, "lr": 0.1, "resumed_at": 0,
}  # fmt: skip
RANKS = {
    "images": [10, 10, 20], "updates": [5, 5, 10], "training_s": [2.0] * 3, "between_bytes": [0, 0, 0],
    "bytes_sent": [1_000_000, 2_000_000, 4_500_000], "weights_bytes": [1 << 20] * 3, "gradient_bytes": [1 << 20] * 3,
    "state_bytes": [1 << 19, 1 << 20, 1 << 20], "peak_bytes": [200 << 20, 300 << 20, 250 << 20],
    "lag": {"clock": {"0": 5, "1": 3, "4": 1}, "version": {"2": 10}},
}  # fmt: skip
END = {"reason": "done", "images_per_s": 1000.0, "exposed_share": 0.25, "iterations": 20}


def curve(*pairs):
    return [Point(2.0 * k, 64 * k, 1e6 * k, loss, accuracy) for k, (loss, accuracy) in enumerate(pairs, start=1)]


def of(name="a", test=((0.9, 0.5), (0.5, 0.8), (0.6, 0.75)), start=None, ranks=RANKS, end=END, **more):
    return RunLog(
        **{
            "name": name, "folder": f"runs/{name}", "start": {**START, **(start or {})},
            "train": curve((2.0, 0.1), (1.0, 0.5)), "test": curve(*test), "iterations": 20, "end": end, "ranks": ranks,
            "failed": None, "last_rate": 900.0,
        } | more
    )  # fmt: skip


OLD = of("old", ranks=None, end=None, test=())
HOT = of("hot", ranks=None, end=None, test=(), failed={"error": "DivergedError", "text": "the loss is nan"})


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_figures_of_a_run_none_for_what_was_not_recorded_and_differences_to_the_first_that_has_it():
    (row,) = rows_of([of()])
    assert (row["test_loss"], row["best_test_loss"]) == (0.6, 0.5)
    assert (row["test_accuracy"], row["best_test_accuracy"]) == (0.75, 0.8)
    assert (row["seconds"], row["examples"]) == (6.0, 128)
    assert row["updates_per_s"] == [2.5, 2.5, 5.0]
    assert row["held_bytes"] == [2.5 * 2**20, 3 * 2**20, 3 * 2**20]
    assert row["lag"] == {"clock": {"median": 0, "largest": 4}, "version": {"median": 2, "largest": 2}}
    assert (row["accuracy_difference"], row["speed_ratio"]) == (0.0, 1.0)
    (row,) = rows_of([OLD])
    assert [row[key] for key in ("test_loss", "bytes_sent", "peak_bytes", "held_bytes", "exposed_share")] == [None] * 5
    assert (row["images_per_s"], row["outcome"]) == (900.0, "cut short")
    (row,) = rows_of([of(ranks={**RANKS, "state_bytes": [None, 1, 1], "lag": {"clock": {}}})])
    assert row["held_bytes"] == [None, 3 * 2**20 - 2**20 + 1, 3 * 2**20 - 2**20 + 1]
    assert row["lag"] == {"clock": {"median": None, "largest": None}}
    first, second = of(test=[(1.0, 0.5)]), of("b", test=[(1.0, 0.75)], end={**END, "images_per_s": 500.0})
    rows = rows_of([FailedVariant("x", "no"), OLD, first, second])
    assert [row["accuracy_difference"] for row in rows] == [None, None, 0.0, 0.25]
    assert [row["speed_ratio"] for row in rows] == [None, 1.0, 1000 / 900, 500 / 900]


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def notes(*runs):
    return notes_of(runs, rows_of(runs))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"data": "mnist"}, ("data sets", "fashion", "mnist")),
        ({"model": "mlp"}, ("models", "lenet", "mlp")),
        ({"lr": 1e8}, ("learning rates", "0.1", "1e+08")),
        ({"ranks": 4}, ("numbers of ranks", "3", "4")),
        ({"precision": "bfloat16"}, ("precisions", "float32", "bfloat16")),
        ({"batch": None}, ("batches", "64", "–")),
        ({"resumed_at": 5}, ()),
    ],
)
def test_what_else_differs_is_said(start, words):
    same = of("a"), of("b", start={"strategy": "sharded", "precision": "float32"})  # of when nobody said, and of now
    assert notes(*same) == [] and notes(*same, of("c", start=start)) == [says("c", *words)]


def test_runs_that_came_to_no_end_or_are_of_unequal_length_are_told():
    stopped = of("d", end={**END, "reason": "interrupted"})
    assert notes(OLD, HOT, FailedVariant("x", "no memory"), stopped) == [
        says("old", "20"),
        says("hot", "the loss is nan"),
        says("x", "no memory"),
        says("d", "interrupted", "20"),
    ]
    assert notes(of(), of("b", train=curve((1.0, 0.5)))) == [says("trained", "scores")]


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────
MANY = [
    of("allreduce"),
    of("averaging --average-every 4 --average-momentum keep", start={"strategy": "averaging every 4", "exact": False}),
    HOT,
    FailedVariant("x", "no memory"),
]


def table_lines(rows, width):
    return [line for table in fitting_tables(NAME, GROUPS, rows, width) for line in plain_lines(table)]


@pytest.mark.parametrize("width", [60, 80, 120, 140, 300])
def test_the_table_fits_and_loses_nothing(width):
    lines = table_lines(rows_of(MANY), width)
    assert max(map(len, lines)) <= width
    if width == 300:  # it is one table
        assert [line.split()[0] for line in lines[2:]] == ["allreduce", "averaging", "--average-momentum", "hot", "x"]
        assert lines[-1].split()[:3] == ["x", "–", "–"]
    text = "\n".join(lines)
    for figure in ("allreduce (ring)", "diverged", "1-4.5", "200-300", "2.5-5", "2.5-3", "0 / 4", "2 / 2", "25.0"):
        assert figure in text, figure


def test_figures_that_no_run_has_take_no_room_and_bytes_between_nodes_are_those_of_all_ranks():
    text = "\n".join(table_lines(rows_of([of(ranks={**RANKS, "lag": None}), of("b", ranks=None)]), 300))
    assert "sent" in text and "lag" not in text and "between nodes" not in text

    # Of runs on several nodes alone; without a figure of a rank there is no sum.
    def between(*runs):
        lines = table_lines(rows_of(runs), 300)
        start = lines[0].find("between nodes")
        units = lines[1][start : start + 13]
        return None if start < 0 else [units, *(line[start : start + 13].split()[0] for line in lines[2:])]

    beyond = of(start={"nodes": 2}, ranks={**RANKS, "between_bytes": [250_000, 1_000_000, 0]})
    unknown = of("b", start={"nodes": 2}, ranks={**RANKS, "between_bytes": [None, None, None]})
    assert between(of()) is None and between(unknown) is None
    assert between(beyond, unknown, of("c")) == ["MB, all ranks", "1.25", NOTHING, NOTHING]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_of_a_terminal(width):
    from rich.console import Console

    worse = of("worse", test=[(0.9, 0.5)])
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    for table in fitting_tables(NAME, GROUPS, rows_of([of(), worse]), width, framed=True):
        console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    assert re.findall(r"\x1b\[1;32m *([\d.]+)", text) == ["0.6000", "0.5000", "75.00", "80.00", "4"]


def test_three_figures():
    values = (0, 0.01234, 1.234, 99.96, 1234.5, 1e6)
    assert list(map(format_figures, values)) == ["0", "0.0123", "1.23", "100", "1,234", "1,000,000"]


def test_csv_has_least_and_most():
    first, hot = csv.DictReader(io.StringIO(csv_text(rows_of([of(), HOT]))))
    assert (first["bytes_sent_least"], first["bytes_sent_most"]) == ("1000000", "4500000")
    assert (first["clock_lag_median"], first["version_lag_largest"]) == ("0", "2")
    assert (hot["outcome"], hot["problem"], hot["bytes_sent_least"]) == ("diverged", "the loss is nan", "")


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_picture_has_a_colour_for_each_run(tmp_path):
    runs = [of(), of("b", ranks=None), HOT]
    write_picture(partial(comparison_figure, runs, rows_of(runs)), tmp_path / "c.png")
    picture = imread(tmp_path / "c.png")
    assert [has(picture, colour) for colour in COLOURS[:4]] == [True, True, True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["c.png"]


def axes_of(runs):
    return comparison_figure(runs, rows_of(runs)).axes


@pytest.mark.parametrize(("accuracy", "label"), [(None, "RMSE"), (0.5, ACCURACY.label)])
def test_runs_without_accuracy_are_drawn_by_their_first_metric(accuracy, label):
    tested = [Point(2.0, 64, 1e6, 0.5, accuracy, {"rmse": 0.7, "r2": 0.1})]
    axes = axes_of([replace(of(), train=curve((2.0, accuracy)), test=tested)])
    labels = [each.get_ylabel() for each in axes]
    assert labels.count(label) == 3 and not {"RMSE", ACCURACY.label} - {label} & set(labels)
    assert not [text for each in axes for text in each.texts if "no run has recorded" in text.get_text()]


def test_a_picture_of_runs_with_next_to_nothing():
    axes = axes_of([replace(OLD, train=[], last_rate=None)])
    assert len([text for each in axes for text in each.texts if "no run has recorded" in text.get_text()]) == 5


def test_bars_have_names_and_many_ranks_are_three_bars():
    bars = axes_of([of("allreduce"), of("averaging --average-every 4 --and more")])[3:8:4]
    shown = [[label.get_text() for label in axes.get_yticklabels()] for axes in bars]
    assert shown == [["allreduce", "averaging --average-\nevery 4 --and more"]] * 2
    bars = axes_of([of(ranks={**RANKS, "bytes_sent": list(range(40))})])[7]
    assert [round(1e6 * bar.get_width()) for bar in bars.patches] == [0, 20, 39]
    assert bars.get_xlabel() == says("MB", "median")


def test_equal_curves_are_seen_both():
    """The later line is thinner and dashed: the first one shows beside it and through its gaps."""
    first, second = [line for line in axes_of([of(), of("b")])[0].lines if line.get_marker() == "o"]
    assert list(first.get_ydata()) == list(second.get_ydata()) and first.get_color() != second.get_color()
    assert first.get_linewidth() > second.get_linewidth()
    assert not first.is_dashed() and second.is_dashed()


def test_runs_without_tests_have_the_end_of_training_and_its_curves_in_the_place_of_tests():
    trained = curve(*((20.0 - k, None) for k in range(20)))
    runs = [of("a", test=(), train=trained), of("b", test=(), train=trained)]
    (row, _) = rows_of(runs)
    assert (row["train_loss"], row["train_accuracy"], rows_of([of()])[0]["train_loss"]) == (1.5, None, None)
    assert (
        "train loss" in table_lines(rows_of(runs), 300)[0] and "train loss" not in table_lines(rows_of([of()]), 300)[0]
    )
    axes = axes_of(runs)
    assert [line.is_dashed() for line in axes[0].lines] == [False, True]
    assert len(axes) == len(axes_of([of()])) - 3  # one row, without three panels of accuracy
    assert "test" not in [text.get_text() for text in axes[-1].get_legend().get_texts()]


def test_pictures_that_cannot_be():
    with pytest.raises(UsageError, match=r"--plot c.pgn: .*'pgn'.*'png'\?"):
        check_picture("c.pgn")
    with pytest.raises(UsageError, match=says("--out", "no/c.png", "no")):
        write_picture(partial(comparison_figure, [of()], rows_of([of()])), "no/c.png")
