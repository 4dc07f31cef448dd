"""The metrics that ``ringtrain evaluate -o metrics.json`` has written, read again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from ringtrain.records import Rules, load

NAME = "metrics.json"  # in a run folder
TITLE = "file of `ringtrain evaluate -o metrics.json`"
BY_CLASS = ("labelled", "predicted", "precision", "recall", "f1", "iou")


@dataclass(frozen=True, slots=True)
class ClassResult:
    """Counts and fractions of a class; None if a fraction has no denominator."""

    name: Annotated[str, Rules(key="class")]
    labelled: int | None
    predicted: int | None
    precision: float | None
    recall: float | None
    f1: float | None
    iou: float | None

    @property
    def values(self) -> list[float | None]:
        """In the order of ``BY_CLASS``."""
        return [getattr(self, name) for name in BY_CLASS]


@dataclass(frozen=True, slots=True)
class EvaluationFile:
    """An evaluation. checkpoint, split, iteration: of what; classes: empty of a loss without any; confusion: a row a
    label, a column a prediction, or None."""

    checkpoint: str
    split: str
    iteration: int
    classes: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...] | None = None
    path: str = ""

    def __post_init__(self) -> None:
        size = len(self.classes)
        if self.confusion is not None and [len(row) for row in self.confusion] != [size] * size:
            raise ValueError(f"confusion is not a matrix of {size} classes")


def read_metrics(path, opener: Callable[[str, int], int] | None = None) -> EvaluationFile:
    """Read the file of an evaluation. ``opener``: as of :func:`open`. Raises UsageError."""
    rules = {"low": 0, "high": 1e18, "plain": True}
    evaluation = load(EvaluationFile, path, TITLE, rules, opener=opener)
    return replace(evaluation, path=str(path))
