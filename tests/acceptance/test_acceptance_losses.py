"""Losses on a GPU beside the CPU's: what is run, and what is made of runs that fail on either side."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def losses(acceptance):
    return acceptance("losses")


def make_runs(losses, folder, answers, notes=()):
    """Runs that answer by device, and say notes; each command is kept."""
    commands = []

    def run(command):
        commands.append(command)
        device, out = (command[command.index(flag) + 1] for flag in ("--device", "--out"))
        answer = answers[device]
        if isinstance(answer, str):
            return 1, answer
        Path(out).mkdir(exist_ok=True)
        records = [{"event": "iteration", "loss": loss} for loss in answer]
        records += [{"event": "note", "text": text} for text in notes]
        (Path(out) / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
        return 0, ""

    return losses.Runs(folder, run), commands


def test_the_cpu_is_asked_once_and_its_failure_is_told_in_every_row(losses, tmp_path):
    runs, commands = make_runs(losses, tmp_path, {"cpu": "no tomli_w here", "cuda": [1.0]})
    rows = list(losses.compared(runs, ["lenet"], False))
    assert [row["ranks"] for row in rows] == [1, 2, 4] and len(commands) == 1
    assert all(row["apart"] == float("inf") and "no tomli_w here" in row["said"] for row in rows)


def test_a_run_on_the_gpu_that_fails_leaves_the_others(losses, tmp_path):
    runs, _ = make_runs(losses, tmp_path, {"cpu": [2.0, 1.0], "cuda": "out of memory"})
    (row,) = (row for row in losses.compared(runs, ["lenet"], False) if row["ranks"] == 1)
    assert row["apart"] == float("inf") and "out of memory" in row["said"]


def test_what_was_done_otherwise_on_the_gpu_is_told(losses, tmp_path):
    notes = ["cuDNN is left out 3×: no engine", "mapped cannot run here", "2 ranks"]
    runs, _ = make_runs(losses, tmp_path, {"cpu": [2.0, 1.0], "cuda": [2.0, 1.0]}, notes)
    row = next(losses.compared(runs, ["lenet"], False))
    assert row["said"] == "cuDNN is left out 3×: no engine; mapped cannot run here"


@pytest.mark.parametrize(
    ("strategy", "found", "apart"),
    [
        ("sharded", [2.0, 1.0], 0.0),
        ("sharded", [2.0, 1.5], 0.5),
        ("sharded", [2.0], float("inf")),
        ("sharded", [2.0, float("nan")], float("inf")),
        ("delayed", [2.0, 1.0], 0.0),
        ("staleness 2", [2.5, 1.2], 0.0),
        ("staleness 2", [1.0, 1.2], float("inf")),
    ],
)
def test_a_strategy_is_held_against_what_it_should_give(losses, tmp_path, strategy, found, apart):
    runs, commands = make_runs(losses, tmp_path, {"cpu": [2.0, 1.0], "cuda": found})
    row = runs.row(strategy, "lenet", 2, losses.STRATEGIES[strategy])
    assert row["apart"] == apart
    on_cpu = [command for command in commands if "cpu" in command]
    ranks = {"sharded": ["1"], "delayed": ["2"], "staleness 2": []}[strategy]
    assert [command[command.index("-np") + 1] for command in on_cpu] == ranks


def test_every_strategy_of_the_catalogue_is_run(losses):
    from ringtrain.exchange.catalogue import AROUND
    from ringtrain.exchange.catalogue import STRATEGIES as KNOWN

    flags = [" ".join(strategy.flags) for strategy in losses.STRATEGIES.values()]
    for name in KNOWN:
        assert name == "allreduce" or any(f"--sync {name}" in each for each in flags), name
    for name in AROUND:
        assert any(f"--fc {name}" in each for each in flags), name
