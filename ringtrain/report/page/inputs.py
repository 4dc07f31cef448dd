"""The inputs of a report: the log of a run, and from its folder the configuration, a trace and the metrics that
``ringtrain evaluate -o metrics.json`` has written, if any."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from ringtrain.config.resolve import read_run_file
from ringtrain.errors import RingtrainError
from ringtrain.records import Rules, load
from ringtrain.report.comparison.logs import RunLog, read_run
from ringtrain.report.trace import TRACE, Slice, read_trace
from ringtrain.storage.files import open_nofollow

CONFIG, METRICS = "config.toml", "metrics.json"  # in a run folder
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


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run. config: key → value; trace: by rank, of the file trace_path; left_out: a line for each part that it
    lacks."""

    log: RunLog
    config: Mapping
    trace: Mapping[int, Sequence[Slice]]
    trace_path: Path
    metrics: EvaluationFile | None
    left_out: Sequence[str]


def read_reported(folder: Path, name: str, metrics_path: Path | None = None) -> ReportedRun:
    """Read a run folder. ``metrics_path``: a file that the user has named, in place of the one in the folder.

    Raises: UsageError if the folder is none of a run, its log cannot be read, or the named metrics cannot.
    """
    log, left_out = read_run(folder, name), list[str]()

    def optional(path: Path, read: Callable, absent: str):
        """Return what a file holds; None if it is not there or cannot be read, and a line that says so."""
        if not os.path.lexists(path):
            left_out.append(absent)
            return None
        try:
            return read(str(path))
        except RingtrainError as error:
            left_out.append(str(error))
            return None

    read_config = partial(read_run_file, opener=open_nofollow)
    config = optional(folder / CONFIG, read_config, "configuration: the folder has no config.toml") or {}
    named = Path(config["trace"] if isinstance(config.get("trace"), str) else TRACE)
    trace_path = folder / named.name  # the configuration may name any file of this machine: none elsewhere is opened
    untraced = "timeline: the run was not traced; `ringtrain train --trace` does"
    if named.parent != Path():
        untraced = (
            f"timeline: the run's trace is {named}, and a report reads files of the run folder alone: copy it to "
            f"{trace_path}"
        )
    trace = optional(trace_path, read_trace, untraced)
    if trace is not None and not any(trace.values()):
        left_out.append(f"timeline: {trace_path} holds no iteration")
    if metrics_path is not None:
        evaluation = read_metrics(metrics_path)
    else:
        unmeasured = f"results by class: `ringtrain evaluate {folder} -o {folder}/metrics.json` makes them"
        evaluation = optional(folder / METRICS, partial(read_metrics, opener=open_nofollow), unmeasured)
    if evaluation is not None and evaluation.confusion is None:
        left_out.append(f"confusion matrix: {evaluation.path} has none, as of a loss without exclusive classes")
    if not (log.exchange or {}).get("buckets"):
        left_out.append(
            "communication by bucket: the log has no record of it, as of one rank or a run that was cut short"
        )
    return ReportedRun(log, config, trace or {}, trace_path, evaluation, left_out)
