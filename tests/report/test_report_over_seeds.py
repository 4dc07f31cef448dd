"""Variants over seeds: means by hand, which runs belong together, table, CSV and picture."""

import csv
import io
import math
from dataclasses import replace
from functools import partial

import pytest
import tomli_w

from ringtrain.report.comparison.logs import Point
from ringtrain.report.comparison.over_seeds import variant_notes, variant_rows, variants_by_seed
from ringtrain.report.comparison.plot import mean_curve, variants_figure
from ringtrain.report.comparison.rows import FailedVariant, notes_of, rows_of
from ringtrain.report.comparison.table import VARIANT_GROUPS, VARIANT_NAME, csv_text, mean_sd
from ringtrain.show.figures import COLOURS, write_picture
from ringtrain.show.tables import fitting_tables, plain_lines
from tests.report.test_report_comparison import END, HOT, RANKS, of
from tests.says import says


def seeded(variant, seed, accuracy=0.5, rate=1000.0, sent=1_000_000, **more):
    return of(
        f"{variant}, seed {seed}",
        test=[(1 - accuracy, accuracy)],
        start={"seed": seed, "strategy": variant},
        end={**END, "images_per_s": rate},
        ranks={**RANKS, "bytes_sent": [sent] * 3},
        **more,
    )


def variant_of(runs):
    return {run.name: run.name.partition(",")[0] for run in runs}


def rows(*runs):
    return rows_of(runs, variant_of(runs))


A = [seeded("a", 0, 0.5, 1000), seeded("a", 1, 0.7, 1000)]
B = [seeded("b", 0, 0.6, 2000, 400_000), seeded("b", 1, 0.6, 4000, 400_000)]
DIVERGED = of("b, seed 2", start={"seed": 2}, test=(), ranks=None, end=None, failed=HOT.failed)


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_means_and_sample_deviations():
    first, second = variant_rows(rows(*A, *B))
    assert (first["name"], first["runs"], first["ended"], first["seeds"]) == ("a", 2, 2, [0, 1])
    assert math.isclose(first["test_accuracy"], 0.6) and math.isclose(first["test_accuracy_sd"], 0.02**0.5)
    assert (second["images_per_s"], second["strategy"]) == (3000, "b")
    assert math.isclose(second["images_per_s_sd"], 2e6**0.5)
    assert (first["bytes_sent"], first["bytes_sent_sd"]) == (3_000_000, 0)  # of all ranks
    assert first["peak_bytes"] == 300 << 20  # of the rank with most
    (alone,) = variant_rows(rows(A[0]))
    assert (alone["test_accuracy"], alone["test_accuracy_sd"]) == (0.5, None)


def test_differences_are_to_the_first_variants_run_of_the_same_seed():
    """So what the seed does to both is not in the deviation."""
    _, second = variant_rows(rows(*A, seeded("b", 0, 0.6), seeded("b", 1, 0.8), seeded("b", 7, 0.1)))
    assert math.isclose(second["accuracy_difference"], 0.1) and second["accuracy_difference_sd"] < 1e-9
    _, second = variant_rows(rows(*A, *B))
    assert (second["speed_ratio"], round(second["speed_ratio_sd"], 6)) == (3.0, round(2**0.5, 6))


def test_runs_without_an_end_are_counted_and_not_averaged():
    variants = variant_rows(rows(*B, DIVERGED, FailedVariant("c, seed 0", "no memory")))
    assert [(row["runs"], row["ended"], row["test_accuracy"]) for row in variants] == [(3, 2, 0.6), (1, 0, None)]
    assert variant_notes(variants) == [says("b", 2, "3 runs")]


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def notes(*runs):
    return notes_of(runs, rows(*runs))


def test_differences_are_told_by_variants():
    assert notes(*A, *B) == []
    other = of("c, seed 5", start={"seed": 5, "lr": 0.3})
    assert notes(*A, *B, other) == [
        says("learning rates", "0.1", "0.3", "c"),
        says("seeds", "0, 1", "5", "c"),
    ]


# ── which runs belong together ────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def make(tmp_path):
    """make(name, seed, lr=..., written=...) → a run whose folder has its configuration, unless it is not written."""

    def run(name, seed, written=True, **settings):
        folder = tmp_path / name
        folder.mkdir()
        if written:
            (folder / "config.toml").write_text(tomli_w.dumps({"seed": seed, "out": str(folder), **settings}))
        return of(name, start={"seed": seed}, folder=str(folder))

    return run


def test_runs_that_differ_by_seed_alone_are_of_one_variant_and_no_two_have_one_name(make):
    runs = [
        make("a-seed-1", 1),
        make("b3-9", 5, lr=0.2),
        make("a-seed-10", 10),
        make("b3-10", 6, lr=0.2),
        make("c", 1, lr=0.5),
    ]
    assert variants_by_seed(runs) == {"a-seed-1": "a", "b3-9": "b3", "a-seed-10": "a", "b3-10": "b3", "c": "c"}
    runs = [make("x", 0), make("x-1", 1, lr=0.1), make("x-2", 2, lr=0.1), make("y", 1, lr=0.2), make("z", 2, lr=0.2)]
    assert list(variants_by_seed(runs).values()) == ["x", "x-1", "x-1", "y", "y"]


def test_runs_of_equal_seeds_or_without_settings_stay_alone(make):
    runs = [make("a", 1), make("b", 1), make("c", 2, written=False), make("d", 3, written=False)]
    assert variants_by_seed(runs) == {name: name for name in "abcd"}


# ── table and CSV ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_mean_has_two_figures_of_its_deviation():
    pairs = ((38.42, 1.234), (38.42, 0.0123), (1234.5, 123.4), (776, 0.0), (776, None))
    texts = ["38.4 ± 1.2", "38.420 ± 0.012", "1,234 ± 123", "776 ± 0", "776 ± –"]
    assert [mean_sd(*pair) for pair in pairs] == texts


@pytest.mark.parametrize("width", [60, 80, 140, 300])
def test_the_table_fits_and_loses_nothing(width):
    variants = variant_rows(rows(*A, *B, DIVERGED, seeded("c", 0)))
    tables = fitting_tables(VARIANT_NAME, VARIANT_GROUPS, variants, width)
    lines = [line for table in tables for line in plain_lines(table)]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for figure in ("2 of 3", "60.00 ± 14.14", "50.00 ± –", "3,000 ± 1,414", "1.2 ± 0", "3.00 ± 1.41"):
        assert figure in text, figure


def test_csv_has_every_run_and_every_mean():
    runs = rows(*A, *B)
    lines = list(csv.DictReader(io.StringIO(csv_text(runs, variant_rows(runs)))))
    assert [(line["kind"], line["name"]) for line in lines] == [
        *(("run", run.name) for run in (*A, *B)), ("mean", "a"), ("mean", "b")
    ]  # fmt: skip
    assert (lines[1]["variant"], lines[1]["seed"], lines[1]["test_accuracy"]) == ("a", "1", "0.7")
    assert (lines[4]["seeds"], lines[4]["test_accuracy"]) == ("0 1", "0.6")
    assert math.isclose(float(lines[4]["test_accuracy_sd"]), 0.02**0.5)


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_mean_curve_is_where_all_curves_are():
    def curve(*losses):
        return [Point(2.0 * k, 64 * k, None, loss, None) for k, loss in enumerate(losses, start=1)]

    x, y, sd = mean_curve([curve(1.0, 2.0, 3.0), curve(3.0, 2.0)], lambda p: p.seconds, lambda p: p.loss)
    assert (x, y, sd) == ([2.0, 4.0], [2.0, 2.0], [2**0.5, 0.0])
    assert mean_curve([curve(1.0)], lambda p: p.nbytes, lambda p: p.loss) == ([], [], [])


def drawn(path, runs):
    write_picture(partial(variants_figure, runs, variant_rows(rows(*runs)), variant_of(runs)), path)
    return path.read_text()


def test_the_picture_has_a_colour_and_costs_for_each_variant_unless_no_run_ended(tmp_path):
    runs = [replace(A[0], start={**A[0].start, "hosts": ["vega"]}), A[1], *B, DIVERGED]
    text = drawn(tmp_path / "c.svg", runs)
    assert [f"fill: {colour}; fill-opacity: 0.18" in text for colour in COLOURS[:3]] == [True, True, False]  # bands
    assert "deviation over seeds" in text and "no run has recorded" not in text and "<!-- vega -->" in text
    assert drawn(tmp_path / "c.svg", [DIVERGED]).count("no run has recorded") == 5
    of_losses = [of(f"{name}, seed 0", start={"seed": 0}, test=[(0.5, None)]) for name in "ab"]
    costs = variants_figure(of_losses, variant_rows(rows(*of_losses)), variant_of(of_losses)).axes[3:8:4]
    assert [(axes.get_ylabel(), [text.get_text() for text in axes.texts]) for axes in costs] == [
        ("loss", ["a", "b"])
    ] * 2
