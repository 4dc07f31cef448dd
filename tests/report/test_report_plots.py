"""The curves of a run: what is drawn, on which axes, and why there is no picture."""

import sys

import pytest
from matplotlib import rc_context
from matplotlib.image import imread

from ringtrain.report import plots
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.events import Evaluated
from ringtrain.report.figure import accuracy_view, few, loss_view
from ringtrain.report.plots import curves_figure, draw_curves
from ringtrain.show.figures import POINTS, STYLE, entitle, new_figure, running_mean, thin_out
from tests.report.conftest import ended, epoch, has, iteration, run
from tests.says import says


@pytest.fixture
def folder(write):
    """Two epochs of 23 iterations."""
    trained = [iteration(iteration=k, loss=4.0 / k, accuracy=1 - 1 / k, seconds=k) for k in range(1, 47)]
    tested = [epoch(iteration=k, test_loss=2.0 / k, test_accuracy=1 - 0.5 / k, seconds=k + 20.0) for k in (10, 23, 46)]
    start = run(date="2026-11-24T11:50:03+00:00", hosts=["a", "a", "b"], mpi="Open MPI v5")
    return write(start, *trained, *tested, ended())


def figure_of(folder):
    with rc_context(STYLE):
        return curves_figure(read_run(folder, "a"))


def test_a_picture_with_both_curves(folder, tmp_path):
    assert draw_curves(folder, tmp_path / "curves.png") is None
    picture = imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (744, 1200)
    assert has(picture, plots.TRAIN) and has(picture, plots.TEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "run"]
    for name, begin in (("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        assert draw_curves(folder, tmp_path / name) is None
        assert (tmp_path / name).read_bytes().startswith(begin)


def test_four_panels_over_epochs_and_time(folder):
    figure = figure_of(folder)
    loss, score, rate, speed = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["epoch", "epoch", "epoch", says("time")]
    assert list(loss.lines[-1].get_xdata()) == [10 / 23, 1.0, 2.0]
    assert score.get_title("right") == says("98.91%")
    assert list(rate.lines[0].get_ydata()) == [0.05] * 46
    assert speed.get_title("right") == says("12,346")
    small = figure.get_supxlabel()
    assert small == "ringtrain 0.1.0 · 2026-11-24 11:50 UTC · a, b · CPU x86-64-v3, 1 thread · Open MPI v5"


def test_a_run_without_a_test_part_and_without_an_end(write):
    folder = write(run(), iteration(iteration=1), epoch(iteration=1, test_loss=None, test_accuracy=None))
    loss, score = figure_of(folder).axes[:2]
    assert [line.get_label() for line in loss.lines][1:] == [says("running", "mean")]
    assert loss.get_ylim() == (0, 1.2 * 2.3) and score.get_title("right") == ""


def test_a_loss_that_is_not_finite_leaves_a_gap_and_evaluations_within_an_epoch_are_test_points(write):
    losses = {1: 2.3, 2: float("nan"), 3: 2.3}
    axes = figure_of(write(run(), *(iteration(iteration=k, loss=value) for k, value in losses.items()))).axes
    assert list(axes[0].lines[0].get_xdata()) == [1, 3]
    assert [each.get_xlabel() for each in axes[:3]] == [says("iteration")] * 3  # less than an epoch
    evaluated = Evaluated(iteration=5, epoch=1, test_loss=1.0, test_accuracy=0.5, seconds=1.0)
    loss = figure_of(write(run(), iteration(), evaluated)).axes[0]
    assert list(loss.lines[-1].get_ydata()) == [1.0]


def test_a_loss_that_counts_nothing_correct_is_drawn_by_its_metric(write):
    tested = epoch(iteration=1, test_accuracy=None, test_metrics={"rmse": 0.25})
    folder = write(run(loss="mse"), iteration(accuracy=None), tested)
    loss, score = figure_of(folder).axes[:2]
    assert (loss.get_title("left"), score.get_title("left")) == (says("mse"), "RMSE")
    assert list(score.lines[0].get_ydata()) == [0.25]


def test_why_there_is_no_picture(folder, write, tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "curves.png", tmp_path / "none" / "curves.png"
    assert draw_curves(folder, elsewhere) == says("--out", elsewhere, elsewhere.parent)
    assert draw_curves(tmp_path, path) == says(tmp_path, "log.jsonl")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert draw_curves(folder, path) == says("matplotlib", "draws")
    assert draw_curves(write(run()), path) == says(folder)  # no iteration


# ── the arithmetic ────────────────────────────────────────────────────────────────────────────────────────────
def test_axes_show_what_matters_and_are_not_compressed_by_a_divergence():
    low, high = accuracy_view([0.2, 0.9, 0.97, 0.98, 0.99, 0.985, 0.99])
    assert low == pytest.approx(94.0) and 100 < high < 101
    assert (99 - 97) / (high - low) > 0.3
    assert accuracy_view([1.0] * 5)[0] == pytest.approx(99.5)
    assert accuracy_view([0.1, 0.12])[0] == 0 and accuracy_view([]) == (0, 101)
    ends = [accuracy_view([0.98], [0.1, accuracy])[0] for accuracy in (0.99, 0.95, 0.8)]
    assert ends == pytest.approx([96, 94.5, 92])  # training as far as the tests keep half of the axis
    assert accuracy_view([], [0.98]) == accuracy_view([0.98])
    assert loss_view([9.0, 0.5, 0.4, 0.3, 0.3], [9.0, 0.4]) == (0, 1.25)
    ends = [loss_view([1.0], [9.0, last])[1] for last in (2.0, 3.0, 9.0)]
    assert ends == pytest.approx([2.5, 3.3, 5])  # training as far as the tests keep half of the axis
    assert loss_view([], [2.0]) == (0, 2.4) and loss_view([0.0], []) == loss_view([], [0.0]) == (0, 1)
    assert loss_view([-2.0], [1.0]) == loss_view([], []) == (None, None)


def test_a_running_mean_keeps_lines_and_smooths_noise_and_thin_curves_keep_their_end():
    assert running_mean([]) == []
    assert running_mean([1.0, 5.0, 3.0]) == [1.0, 5.0, 3.0]
    line = [float(k) for k in range(400)]
    assert running_mean(line)[4:-4] == line[4:-4]
    assert max(running_mean([0.0, 9.0] * 200)) <= 9 * 3 / 5
    for count in (1, 2, 1499, 1500, 1501, 3000, 4000):
        x, y = thin_out(range(count), range(count))
        assert x == y and x[-1] == count - 1 and 0 < len(x) <= POINTS


def test_small_print_goes_on_in_a_line_below_where_a_figure_is_narrow():
    assert (few(["a", None, "b", "a", ""]), few("abcdef")) == ("a, b", "a, b, c, 3 more")
    figure = new_figure(2, 1)
    entitle(figure, "", "one host, " * 8)
    lines = figure.get_supxlabel().splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 36
