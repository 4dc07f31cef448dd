"""The metrics that ``ringtrain evaluate -o metrics.json`` has written, read again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringtrain.errors import UsageError, plain
from ringtrain.parsing import parse_json, read_text

NAME = "metrics.json"  # in a run folder
BY_CLASS = ("labelled", "predicted", "precision", "recall", "f1", "iou")


@dataclass(frozen=True, slots=True)
class ClassResult:
    """Counts and fractions of a class, in the order of ``BY_CLASS``; None if a fraction has no denominator."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class EvaluationFile:
    """An evaluation. checkpoint, split, iteration: of what; classes: empty of a loss without any; confusion: a row a
    label, a column a prediction, or None."""

    path: str
    checkpoint: str
    split: str
    iteration: int
    classes: Sequence[ClassResult]
    confusion: Sequence[Sequence[int]] | None


def read_metrics(path, opener: Callable[[str, int], int] | None = None) -> EvaluationFile:
    """Read the file of an evaluation. ``opener``: as of :func:`open`. Raises UsageError if it cannot be read or holds
    something else."""
    try:
        held = parse_json(read_text(path, opener=opener))
        classes = [_class(each) for each in held["classes"]]
        confusion = held.get("confusion")
        if confusion is not None:
            _check_square(confusion, len(classes))
        checkpoint, split = (plain(_of(str, held[key])) for key in ("checkpoint", "split"))
        return EvaluationFile(str(path), checkpoint, split, _of(int, held["iteration"]), classes, confusion)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UsageError(f"{path} does not hold metrics of `ringtrain evaluate -o metrics.json` ({error!r})") from None


def _class(held: Mapping) -> ClassResult:
    values = [held[key] for key in BY_CLASS]
    for value in values:
        if value is not None and not (type(value) in (int, float) and 0 <= value < 1e18):
            raise ValueError(value)
    return ClassResult(plain(_of(str, held["class"])), values)


def _check_square(rows, size: int) -> None:
    if len(rows) != size or any(type(row) is not list or len(row) != size for row in rows):
        raise ValueError(f"the confusion matrix is not one of {size} classes")
    for row in rows:
        for count in row:
            if _of(int, count) < 0:
                raise ValueError(count)


def _of(kind: type, value):
    if type(value) is not kind:
        raise TypeError(repr(value))
    return value
