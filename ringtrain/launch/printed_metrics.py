"""Scores in the lines that a script prints: ``--metric "loss=loss ([0-9.]+)"``."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from ringtrain.errors import UsageError, nearest

STEP = "step"
SCORES = ("loss", "accuracy", "test_loss", "test_accuracy")
LONGEST = 1 << 16  # characters of a line
Metric = tuple[str, re.Pattern[str]]  # a name, and what finds it: its group is the number, with a % of percent


def parse_metric(text: str) -> Metric:
    """Return the metric NAME=PATTERN. Raises UsageError."""
    name, _, pattern = text.partition("=")
    if name not in (STEP, *SCORES):
        raise UsageError(f"--metric {text!r}: unknown score {name!r}; {nearest(name, (STEP, *SCORES))}")
    with suppress(re.error):
        if (compiled := re.compile(pattern)).groups == 1:
            return name, compiled
    raise UsageError(f"--metric {text!r}: wanted a regular expression with one group, as in loss=loss ([0-9.]+)")


def values_in(line: str, metrics: Sequence[Metric]) -> dict[str, float]:
    values = {}
    for name, pattern in metrics:
        with suppress(ValueError, TypeError, AttributeError):  # no match, an empty group, or no number
            number = pattern.search(line)[1]  # type: ignore[index]
            values[name] = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    return values


class MetricLines:
    """A stream of text that looks for metrics in what is written. tell: is given those of each line, by their names"""

    def __init__(self, stream: TextIO, metrics: Sequence[Metric], tell: Callable[[dict[str, float]], None]):
        self._stream, self._metrics, self._tell, self._line = stream, metrics, tell, ""

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        *lines, self._line = re.split("[\r\n]", self._line[-LONGEST:] + text)
        for values in filter(None, (values_in(line, self._metrics) for line in lines)):
            self._tell(values)
        return self._stream.write(text)
