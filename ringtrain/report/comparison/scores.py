"""The scores of runs that are drawn: the loss, and accuracy or another metric."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.screen.words import metric_name

TIME_AXIS, BYTES_AXIS = "time, s", "sent by all ranks, MB"
TRAIN_CURVE, TEST_CURVE = "train, running mean", "test"
Coordinate = Callable[[Point], float | None]


@dataclass(frozen=True, slots=True)
class DrawnScore:
    """A score. label: of its axis; of: its value at a point, accuracies in percent, or None; is_accuracy: whether it is
    one."""

    name: str
    label: str
    value: Coordinate
    is_accuracy: bool = False


LOSS = DrawnScore("loss", "loss", lambda point: point.loss)
ACCURACY = DrawnScore(
    "accuracy", "accuracy, %", lambda point: None if point.accuracy is None else 100 * point.accuracy, is_accuracy=True
)


def second_score(runs: Sequence[RunLog]) -> DrawnScore:
    """Return the score beside the loss: accuracy, or the first metric of runs that have none."""
    tests = [point for run in runs for point in run.test]
    metric = next((name for point in tests for name in point.metrics), None)
    if metric is None or any(point.accuracy is not None for run in runs for point in (*run.test, *run.train)):
        return ACCURACY
    return DrawnScore(metric_name(metric), metric_name(metric), lambda point: point.metrics.get(metric))


def series(points: Sequence[Point], x_of: Coordinate, y_of: Coordinate) -> tuple[list[float], list[float]]:
    """Return the coordinates of the points that have both."""
    pairs = [(x_of(point), y_of(point)) for point in points]
    whole = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in whole], [y for _, y in whole]
