"""The curves of a run as a picture: loss, accuracy, learning rate and throughput, from its log."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import RingtrainError
from ringtrain.humanize import RATE
from ringtrain.report.comparison.logs import Point, RunLog, read_run
from ringtrain.report.comparison.scores import TEST_CURVE, TIME_AXIS, TRAIN_CURVE, Coordinate, second_score, series
from ringtrain.report.figure import accuracy_view, loss_view, small_print, title_of
from ringtrain.report.records import lines_of
from ringtrain.report.screen.words import accuracy_percent
from ringtrain.show.figures import entitle, new_figure, running_mean, say, thin_out, write_picture
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
    x, y = series(run.train, _iterations(run), lambda point: point.lr)
    rate.plot(*thin_out(x, y), color=TRAIN, linewidth=1.6)
    rate.set(title="Learning rate")
    for axes in (loss, score, rate):
        axes.set(xlabel=_unit(run)[1], xlim=(0, None))
        axes.locator_params(axis="x", integer=True)
    rate.set_ylim(bottom=0)
    _throughput(speed, run)
    entitle(figure, title_of(run.start), small_print([run.start]))
    return figure


def _loss(axes: "Axes", run: RunLog) -> None:
    name = run.start.get("loss") or "ce"
    _curves(axes, run, lambda point: point.loss)
    tested, trained = _values(run, lambda point: point.loss)
    axes.set(title="Loss: cross-entropy" if name == "ce" else f"Loss: {name}", ylim=loss_view(tested, trained))
    _say_tests(axes, [f"{loss:.4f}" for loss in tested], tested, min)


def _score(axes: "Axes", run: RunLog) -> None:
    score = second_score([run])
    _curves(axes, run, score.value)
    axes.set(title=score.label[0].upper() + score.label[1:])
    if score.is_accuracy:
        tested, trained = _values(run, lambda point: point.accuracy)
        axes.set_ylim(*accuracy_view(tested, trained))
        _say_tests(axes, [accuracy_percent(accuracy) for accuracy in tested], tested, max)
    if not axes.lines:
        say(axes, f"the run has recorded no {score.name}")


def _values(run: RunLog, value_of: Coordinate) -> list[list[float]]:
    """Return the scores of tests, and the running mean of training scores."""
    tested, trained = (
        [y for point in points if (y := value_of(point)) is not None] for points in (run.test, run.train)
    )
    return [tested, running_mean(trained)]


def _say_tests(axes: "Axes", shown: Sequence[str], values: Sequence[float], best: Callable) -> None:
    """Write the last and the best figure of the tests above the axes."""
    if shown:
        text = f"test: last {shown[-1]}, best {shown[values.index(best(values))]}"
        axes.set_title(text, loc="right", fontsize="small", color=TEST)


def _curves(axes: "Axes", run: RunLog, value_of: Coordinate) -> None:
    """Draw training as a pale line and its running mean, tests as points on a line."""
    x, y = series(run.train, _iterations(run), value_of)
    if x:
        axes.plot(*thin_out(x, y), color=TRAIN, alpha=0.25, linewidth=0.8)
        axes.plot(*thin_out(x, running_mean(y)), color=TRAIN, linewidth=1.6, label=TRAIN_CURVE)
    x, y = series(run.test, _iterations(run), value_of)
    if x:
        size = 4 if len(x) < 60 else 2
        axes.plot(x, y, color=TEST, marker="o", markersize=size, linewidth=1.4, label=TEST_CURVE)
    if axes.lines:
        axes.legend()


def _unit(run: RunLog) -> tuple[int, str]:
    """Return the iterations of one unit of the x axis, and its name."""
    of_an_epoch = run.start.get("iterations_per_epoch") or 0
    whole = 0 < of_an_epoch <= max((point.iteration for point in run.train), default=0)
    return (of_an_epoch, "epoch") if whole else (1, "iteration")


def _iterations(run: RunLog) -> Coordinate:
    unit, _ = _unit(run)
    return lambda point: point.iteration / unit


def _throughput(axes: "Axes", run: RunLog) -> None:
    """Draw examples a second."""
    unit, label = time_unit(run.train)
    x, y = series(run.train, lambda point: point.seconds / unit, lambda point: point.images_per_s or None)
    axes.plot(*thin_out(x, y), color=TRAIN, linewidth=1.6)
    axes.set(title=f"{RATE}, over all ranks", xlabel=label, xlim=(0, None))
    axes.set_ylim(bottom=0, top=1.15 * max(y, default=1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    overall = (run.end or {}).get("images_per_s")
    if overall:
        axes.set_title(f"median {overall:,.0f}", loc="right", fontsize="small")


def time_unit(points: Sequence[Point]) -> tuple[float, str]:
    """Return the seconds of one unit of an axis of time, and its name."""
    longest = max((point.seconds for point in points), default=0.0)
    units = ((3600.0, "time, h"), (60.0, "time, min"))
    return next((each for each in units if longest >= 3 * each[0]), (1.0, TIME_AXIS))
