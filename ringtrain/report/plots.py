"""The curves of a run as a picture, from its log."""

import math
import os
from collections.abc import Sequence
from itertools import accumulate

from ringtrain.humanize import plural
from ringtrain.report import texts
from ringtrain.report.records import read_record
from ringtrain.report.screen.words import accuracy_percent, metric_name

POINTS = 1500  # of a curve at most: more are finer than the picture
TRAIN, TEST = "#4477aa", "#cc4444"


def draw_curves(log_path, png_path) -> str | None:
    """Draw loss and accuracy, of training and of test, against the iteration.

    Returns None, or the reason why there is no picture: a picture is never worth failing a run. An existing picture is
    replaced whole or not at all.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return texts.NO_MATPLOTLIB()
    try:
        log = read_log(log_path)
        if not log["iteration"]:
            return texts.NOTHING_TO_DRAW(path=log_path)
        figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, log)
        replace_picture(figure, os.fspath(png_path))
    except OSError as error:
        return texts.UNDRAWN(path=error.filename or png_path, problem=error.strerror)
    return None


def has_iterations(log_path) -> bool:
    """Return whether the log has iterations to draw; None if it cannot be read."""
    try:
        with open(log_path, "rb") as log:
            return any(b'"event": "iteration"' in line for line in log)
    except OSError:
        return False


def read_log(log_path) -> dict[str, list[dict]]:
    """Return the records of a log by kind; malformed lines are passed over."""
    kinds: dict[str, list[dict]] = {kind: [] for kind in ("start", "iteration", "epoch", "evaluation", "end")}
    with open(log_path, "rb") as log:
        for line in log:
            found = read_record(line)
            if found is not None and found["event"] in kinds:
                kinds[found["event"]].append(found)
    return kinds


def _draw(figure, log: dict) -> None:
    loss, accuracy = figure.subplots(1, 2)
    tests = sorted(log["epoch"] + log["evaluation"], key=lambda found: found["iteration"])
    _curves(loss, log["iteration"], "loss", tests, "test_loss", 1.0)
    name = next((run.get("loss", "ce") for run in log["start"][-1:]), "ce")
    loss.set(title=texts.LOSS_AXES, xlabel=texts.ITERATION_AXIS, ylabel=texts.CROSS_ENTROPY if name == "ce" else name)
    loss.set_ylim(bottom=0.0)
    metric = None if any(each["accuracy"] is not None for each in log["iteration"]) else _first_metric(tests)
    if metric is None:
        _curves(accuracy, log["iteration"], "accuracy", tests, "test_accuracy", 100.0)
        accuracy.set(title=texts.ACCURACY_AXES, xlabel=texts.ITERATION_AXIS, ylabel=texts.PERCENT)
        accuracy.set_ylim(bottom=0.0, top=101.0)
    else:
        found = [
            {"iteration": each["iteration"], metric: (each.get("test_metrics") or {}).get(metric)} for each in tests
        ]
        _curves(accuracy, [], metric, found, metric, 1.0)
        accuracy.set(title=metric_name(metric), xlabel=texts.ITERATION_AXIS, ylabel=metric_name(metric))
    for axes in (loss, accuracy):
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(_title(log), fontsize=11)
    figure.get_layout_engine().set(wspace=0.06)


def _first_metric(tests: Sequence[dict]) -> str | None:
    return next((name for each in tests for name in each.get("test_metrics") or {}), None)


def _curves(axes, trained: list, train_name: str, tests: list, test_name: str, scale: float) -> None:
    x, y = field_series(trained, train_name, scale)
    if x:
        axes.plot(*thin_out(x, y), color=TRAIN, alpha=0.25, linewidth=0.8)
        axes.plot(*thin_out(x, running_mean(y)), color=TRAIN, linewidth=1.6, label=texts.TRAIN_CURVE)
    x, y = field_series(tests, test_name, scale)
    if x:
        size = 4 if len(x) < 60 else 2
        axes.plot(x, y, color=TEST, marker="o", markersize=size, linewidth=1.4, label=texts.TEST_CURVE)


def _title(log: dict) -> str:
    starts = log["start"][-1:]
    parts = [_of_start(run) for run in starts if not {"model", "data", "ranks", "batch"} - run.keys()]
    ends = [end for end in log["end"][-1:] if end["test_accuracy"] is not None]
    parts += [texts.TEST_ACCURACY(accuracy=accuracy_percent(end["test_accuracy"])) for end in ends]
    return ": ".join(parts)


def _of_start(run: dict) -> str:
    return texts.PICTURE_TITLE(
        model=run["model"], data=run["data"], ranks=plural(run["ranks"], "rank"), batch=run["batch"]
    )


def field_series(found: list[dict], name: str, scale: float) -> tuple[list, list]:
    """Return iterations and scaled values of a field, at records whose value is a number."""
    pairs = [(each["iteration"], scale * each[name]) for each in found if each.get(name) is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def running_mean(y: Sequence[float]) -> list[float]:
    """Return the mean of a window around each point, a fiftieth of the curve wide: centred, so that the curve does not
    lag behind.
    """
    sums = list(accumulate(y, initial=0.0))
    half = len(y) // 100
    windows = [(max(0, i - half), min(len(y), i + half + 1)) for i in range(len(y))]
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in windows]


def thin_out(x: Sequence[float], y: Sequence[float]) -> tuple[list, list]:
    """Return at most ``POINTS`` points of a curve, evenly taken, the last one among them."""
    step = max(1, math.ceil(len(x) / POINTS))
    taken = range((len(x) - 1) % step, len(x), step)
    return [x[i] for i in taken], [y[i] for i in taken]


def replace_picture(figure, path: str, kind: str = "png") -> None:
    """Save a figure; an existing picture is replaced whole or not at all. Raises OSError."""
    aside = f"{path}.{os.getpid()}.ringtrain-partial"
    try:
        figure.savefig(aside, format=kind)
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.remove(aside)
