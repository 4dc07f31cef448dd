"""The inputs of a report: the log of a run, and from its folder the configuration, a trace and metrics, if any."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ringtrain.config.resolve import read_run_file
from ringtrain.errors import RingtrainError
from ringtrain.report.comparison.logs import RunLog, read_run
from ringtrain.report.page import metrics
from ringtrain.report.page.metrics import EvaluationFile
from ringtrain.report.trace import TRACE, Slice, read_trace
from ringtrain.storage.files import open_nofollow

CONFIG = "config.toml"


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
    log = read_run(folder, name)
    left_out: list[str] = []
    config = (
        _optional(
            folder / CONFIG,
            partial(read_run_file, opener=open_nofollow),
            "configuration: the folder has no config.toml",
            left_out,
        )
        or {}
    )
    named = Path(config["trace"] if isinstance(config.get("trace"), str) else TRACE)
    trace_path = folder / named.name  # the configuration may name any file of this machine: none elsewhere is opened
    elsewhere = (
        (
            f"timeline: the run's trace is {named}, and a report reads files of the run folder alone: copy it to "
            f"{trace_path}"
        )
        if named.parent != Path()
        else ""
    )
    trace = _trace(trace_path, elsewhere, left_out)
    evaluation = (
        metrics.read_metrics(metrics_path)
        if metrics_path is not None
        else _optional(
            folder / metrics.NAME,
            partial(metrics.read_metrics, opener=open_nofollow),
            f"results by class: `ringtrain evaluate {folder} -o {folder}/metrics.json` makes them",
            left_out,
        )
    )
    if evaluation is not None and evaluation.confusion is None:
        left_out.append(f"confusion matrix: {evaluation.path} has none, as of a loss without exclusive classes")
    if not (log.exchange or {}).get("buckets"):
        left_out.append(
            "communication by bucket: the log has no record of it, as of one rank or a run that was cut short"
        )
    return ReportedRun(log, config, trace, trace_path, evaluation, left_out)


def _trace(path: Path, elsewhere: str, left_out: list[str]) -> Mapping[int, Sequence[Slice]]:
    trace = _optional(
        path, read_trace, elsewhere or "timeline: the run was not traced; `ringtrain train --trace` does", left_out
    )
    if trace is not None and not any(trace.values()):
        left_out.append(f"timeline: {path} holds no iteration")
    return trace or {}


def _optional(path: Path, read, absent: str, left_out: list[str]):
    """Return what a file holds; None if it is not there or cannot be read, and a line that says so."""
    if not os.path.lexists(path):
        left_out.append(absent)
        return None
    try:
        return read(str(path))
    except RingtrainError as error:
        left_out.append(str(error))
        return None
