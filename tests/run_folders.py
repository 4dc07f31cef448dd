"""Run folders as `ringtrain train` leaves them, without a training."""

import json
from dataclasses import replace

import tomli_w

from ringtrain.report.events import Failed
from ringtrain.report.sinks import JsonLines
from tests.report.conftest import ENDED, EPOCH, ITERATION, RUN

DIVERGED = Failed(error="DivergedError", text="the loss is nan")


def log_of(*, ended=True, scored=True, lr=0.05, accuracy=0.975, date="2026-01-31T22:59:00+00:00"):
    """The events of a run of two iterations."""
    events = [replace(RUN, date=date, iterations=2, iterations_per_epoch=2, ranks=2)]
    events += [replace(ITERATION, iteration=k, lr=lr) for k in (1, 2)]
    events += [replace(EPOCH, iteration=2, test_accuracy=0.875)] if scored else []
    return events + ([replace(ENDED, iterations=2, epochs=1, test_accuracy=accuracy)] if ended else [])


def make_run(folder, events=None, outcome="done", **options):
    """Make a run folder with these records, outcome and options. Returns its path."""
    (folder / "checkpoints").mkdir(parents=True)
    log = JsonLines(folder / "log.jsonl")
    for event in log_of() if events is None else events:
        log.handle(event)
    log.close()
    (folder / "config.toml").write_text(tomli_w.dumps({"model": "digits", "lr": 0.05, **options}))
    content = {"outcome": outcome, "exit_code": None, "iteration": 2, "iterations": 2, "ranks": 3, "lost": []}
    (folder / "outcome.json").write_text(json.dumps(content | {"text": "it is late"}))
    return folder
