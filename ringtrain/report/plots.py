"""The curves of a run as a picture: loss, accuracy, learning rate and throughput, from its log."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import RingtrainError
from ringtrain.report import texts
from ringtrain.report.comparison.logs import Point, RunLog, read_run
from ringtrain.report.comparison.scores import DrawnScore, second_score, series
from ringtrain.report.figure import (
    accuracy_view,
    broken,
    entitle,
    loss_view,
    new_figure,
    print_small,
    running_mean,
    say,
    small_print,
    thin_out,
    title_of,
    write_picture,
)
from ringtrain.report.records import lines_of
from ringtrain.report.screen.words import accuracy_percent
from ringtrain.storage import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, TEST = "#4477aa", "#cc4444"


def draw_curves(folder, path) -> str | None:
    """Draw the curves of the run in a folder as PNG, SVG or PDF, by the path's ending.

    Returns None, or the reason why there is no picture: a picture is never worth failing a run. An existing picture is
    replaced whole or not at all.
    """
    try:
        run = read_run(folder, Path(folder).name)
        if not run.train:
            return f"{folder} has no iteration to draw"
        write_picture(partial(curves_figure, run), path, files.Folder(Path(path).parent))
    except ImportError:
        return "matplotlib is not installed: pip install 'ringtrain[plot]' draws the curves of the next run"
    except RingtrainError as error:
        return str(error)
    return None


def has_iterations(log_path) -> bool:
    """Return whether the log has iterations to draw; False if it cannot be read."""
    try:
        with open(log_path, "rb", opener=files.open_nofollow) as log:
            return any(b'"event": "iteration"' in line for line in lines_of(log))
    except OSError:
        return False


def curves_figure(run: RunLog) -> "Figure":
    """Return loss, score and learning rate against epochs, or iterations where there is no whole epoch; and images a
    second against time."""
    figure = new_figure(10, 6.2)
    (loss, score), (rate, speed) = figure.subplots(2, 2)
    _loss(loss, run)
    _score(score, run)
    _learning_rate(rate, run)
    _throughput(speed, run)
    entitle(figure, title_of(run.start))
    print_small(figure, small_print([run.start]))
    return figure


def _loss(axes: "Axes", run: RunLog) -> None:
    name = run.start.get("loss") or "ce"
    _curves(axes, run, lambda point: point.loss)
    tested = [point.loss for point in run.test if point.loss is not None]
    trained = running_mean([point.loss for point in run.train if point.loss is not None])
    axes.set(title="Loss: cross-entropy" if name == "ce" else f"Loss: {name}", ylim=loss_view(tested, trained))
    _say_tests(axes, [f"{loss:.4f}" for loss in tested], tested, min)


def _score(axes: "Axes", run: RunLog) -> None:
    found: DrawnScore = second_score([run])
    _curves(axes, run, found.of)
    axes.set(title=found.label[0].upper() + found.label[1:])
    if found.is_accuracy:
        tested = [point.accuracy for point in run.test if point.accuracy is not None]
        trained = running_mean([point.accuracy for point in run.train if point.accuracy is not None])
        axes.set_ylim(*accuracy_view(tested, trained))
        _say_tests(axes, [accuracy_percent(accuracy) for accuracy in tested], tested, max)
    if not axes.lines:
        say(axes, f"the run has recorded no {found.name}")


def _say_tests(axes: "Axes", shown: Sequence[str], values: Sequence[float], best) -> None:
    """Write the last and the best figure of the tests above the axes."""
    if shown:
        text = f"test: last {shown[-1]}, best {shown[values.index(best(values))]}"
        axes.set_title(text, loc="right", fontsize="small", color=TEST)


def _curves(axes: "Axes", run: RunLog, of) -> None:
    """Draw training as a pale line and its running mean, tests as points on a line."""
    unit, label = _unit(run)
    x, y = series(run.train, lambda point: point.iteration / unit, of)
    if x:
        axes.plot(*thin_out(x, y), color=TRAIN, alpha=0.25, linewidth=0.8)
        axes.plot(*thin_out(x, running_mean(y)), color=TRAIN, linewidth=1.6, label=texts.TRAIN_CURVE())
    x, y = series(run.test, lambda point: point.iteration / unit, of)
    if x:
        size = 4 if len(x) < 60 else 2
        axes.plot(x, y, color=TEST, marker="o", markersize=size, linewidth=1.4, label=texts.TEST_CURVE())
    axes.set(xlabel=label, xlim=(0, None))
    axes.locator_params(axis="x", integer=True)
    if axes.lines:
        axes.legend()


def _unit(run: RunLog) -> tuple[int, str]:
    """Return the iterations of one unit of the x axis, and its name."""
    of_an_epoch = run.start.get("iterations_per_epoch") or 0
    whole = 0 < of_an_epoch <= max((point.iteration for point in run.train), default=0)
    return (of_an_epoch, "epoch") if whole else (1, "iteration")


def _learning_rate(axes: "Axes", run: RunLog) -> None:
    unit, label = _unit(run)
    x, y = series(run.train, lambda point: point.iteration / unit, lambda point: point.lr)
    axes.plot(*thin_out(x, y), color=TRAIN, linewidth=1.6)
    axes.set(title="Learning rate", xlabel=label, xlim=(0, None))
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(bottom=0)


def _throughput(axes: "Axes", run: RunLog) -> None:
    """Draw images a second, with gaps while the run evaluates and saves."""
    unit, label = time_unit(run.train)
    x, y = series(run.train, lambda point: point.seconds / unit, lambda point: point.images_per_s or None)
    axes.plot(*broken(*thin_out(x, y)), color=TRAIN, linewidth=1.6)
    axes.set(title="Images/s, over all ranks", xlabel=label, xlim=(0, None))
    axes.set_ylim(bottom=0, top=1.15 * max(y, default=1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    overall = (run.end or {}).get("images_per_s")
    if overall:
        axes.set_title(f"median {overall:,.0f}", loc="right", fontsize="small")


def time_unit(points: Sequence[Point]) -> tuple[float, str]:
    """Return the seconds of one unit of an axis of time, and its name."""
    longest = max((point.seconds for point in points), default=0.0)
    units = ((3600.0, "time, h"), (60.0, "time, min"))
    return next((each for each in units if longest >= 3 * each[0]), (1.0, texts.TIME_AXIS()))
