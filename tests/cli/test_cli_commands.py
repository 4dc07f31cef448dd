"""``ringtrain compare -n N`` of a script, with a launcher that copies logs in place of training."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from ringtrain.cli.compare import compare
from ringtrain.report.sinks import JsonLines
from tests.cli_calls import call as call_command
from tests.report.conftest import RANKS, ended, iteration, run
from tests.says import says

# Copies the log of the folder's seed. The script "odd.py" leaves nothing, and "same.py" the same for each seed.
LAUNCHER = """#!/bin/sh
echo "$@" >>started
ranks=$1 out= seed=0 script=
while [ $# -gt 0 ]; do
    case $1 in --out) out=$2;; --seed) seed=$2;; *.py) script=$1;; esac
    shift
done
[ $script != same.py ] || seed=0
[ $script != odd.py ] || { echo "no such data"; exit 3; }
mkdir -p "$out" && cp "log-$seed.jsonl" "$out/log.jsonl"
case $out in *gossip*) end='"failed", "exit_code": 1' code=1;; *) end='"done", "exit_code": 0' code=0;; esac
counts='"iteration": 2, "iterations": 2, "ranks": 2, "lost": [], "text": "no more"'
echo "{\\"outcome\\": $end, $counts}" >"$out/outcome.json"
exit $code
"""
COMMAND = ("--", "python", "-m", "ringtrain.torch", "--deadline-s", "9")
call = partial(call_command, compare)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(arguments) → (exit code, what it says), in a folder with the launcher."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RINGTRAIN_SEED", raising=False)
    Path("launch").write_text(LAUNCHER)
    Path("launch").chmod(0o755)
    for seed in (0, 1):
        log = JsonLines(Path(f"log-{seed}.jsonl"))
        log.handle(run(model="Net", data="data of a.py", test_examples=0, iterations_per_epoch=0, seed=seed))
        for k in (1, 2):
            log.handle(iteration(iteration=k, loss=3.0 / k - seed / 4, accuracy=None, seconds=float(k)))
        log.handle(RANKS)
        log.handle(ended(iterations=2, test_loss=None, test_accuracy=None))
        log.close()
    return lambda *arguments: call("--launcher", "./launch {ranks}", *arguments)


def started():
    return [line.split() for line in Path("started").read_text().splitlines()]


def test_each_variant_is_started_with_its_options_behind_the_commands_own(start):
    metric = ("--metric", "loss=loss ([0-9.]+)")
    sync = ("--sync", "allreduce,averaging --average-every 8", "--variant", "low rank: --compress powersgd")
    code, output = start("-n", "2", *sync, *metric, "--out", "c", "--csv", "c.csv", *COMMAND, "a.py", "--epochs", "3")
    assert code == 0, output
    words = started()
    before, behind = ["2", "python", "-m", "ringtrain.torch", "--deadline-s", "9"], ["a.py", "--epochs", "3"]
    options = [["--sync", "allreduce"], ["--sync", "averaging", "--average-every", "8"], ["--compress", "powersgd"]]
    folders = ["c/allreduce", "c/averaging-average-every-8", "c/low-rank"]
    assert words == [
        [*before, *each, "--out", folder, "--seed", "0", "--metric", *metric[1].split(), *behind]
        for each, folder in zip(options, folders, strict=True)
    ]
    rows = json.loads(Path("c/compare.json").read_text())["rows"]
    assert [(row["name"], row["outcome"], row["train_loss"]) for row in rows] == [
        (name, "done", 1.5) for name in ("allreduce", "averaging --average-every 8", "low rank")
    ]
    assert "train loss" in output and "1.5000" in output and Path("c/compare.png").exists()
    assert [row["train_loss"] for row in csv.DictReader(Path("c.csv").read_text().splitlines())] == ["1.5"] * 3


def test_seeds_are_in_the_command_and_fronts_are_of_the_training_loss(start):
    code, output = start(
        "-n", "2", "--sync", "allreduce,delayed", "--seeds", "2", "--out", "c", *COMMAND, "a.py", "s={seed}"
    )
    assert code == 0, output
    assert [(words[words.index("--seed") + 1], words[-1]) for words in started()] == [
        ("0", "s=0"), ("0", "s=0"), ("1", "s=1"), ("1", "s=1"),
    ]  # fmt: skip
    first, _ = json.loads(Path("c/compare.json").read_text())["variants"]
    assert (first["seeds"], first["train_loss"]) == ([0, 1], 1.375)


def test_a_script_that_ignores_its_seed_is_named_at_its_second_seed(start):
    code, said = start("-n", "2", "--sync", "allreduce,delayed", "--seeds", "3", "--out", "c", *COMMAND, "same.py")
    assert code == 2 and says("'allreduce, seed 0'", "'allreduce, seed 1'", "{seed}", "RINGTRAIN_SEED").matches(said)
    assert len(started()) == 3


def test_a_variant_that_fails_is_a_row_with_its_reason(start):
    code, output = start("-n", "2", "--sync", "allreduce,gossip", "--out", "c", *COMMAND, "a.py")
    rows = json.loads(Path("c/compare.json").read_text())["rows"]
    assert code == 1 and [row["outcome"] for row in rows] == ["done", "done"]  # as its log says
    assert says("'gossip'", "no more", "status 1", "c/gossip.txt").matches(output)
    code, output = start("-n", "2", "--sync", "delayed", "--out", "d", *COMMAND, "odd.py")
    (row,) = json.loads(Path("d/compare.json").read_text())["rows"]
    assert (
        code == 1 and row["outcome"] == "failed" and row["problem"] == says("no such data", "status 3", "d/delayed.txt")
    )


TORCH = COMMAND[:4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "2", "--", "python", "a.py"), says("-n 2", "'python a.py'", "python -m ringtrain.torch")),
        (("-n", "2", "--", "python", "-m", "ringtrain.torch"), says("does not go through")),
        (("-n", "2"), says("-n 2", "'nothing'")),
        (("-n", "2", "--", "mpirun", *TORCH[1:], "a.py"), says("-n 2", "leave mpirun out")),
        (("-n", "2", *TORCH, "--out", "x", "a.py"), says("--out", "--seed", "folders")),
        (("-n", "2", *TORCH, "--help"), says("--help")),
        (("-n", "2", *TORCH, "--sync", "no", "a.py"), says("--sync", "'no'")),
        (("-n", "2", "--variant", "b: --seed 4", *TORCH, "a.py"), says("'b'", "--seed")),
        (("-n", "2", "--variant", "b: a.py", *TORCH, "a.py"), says("'b'", "not a list of options")),
        (("-n", "2", "--variant", "b: --sync master", *TORCH, "a.py"), says("'b'", "--sync master")),
        (("-n", "2", "--metric", "los=(1)", *TORCH, "a.py"), says("'los'")),
        ((*TORCH, "a.py"), says("-m ringtrain.torch", "-n")),
        (("--metric", "loss=(1)", "--", "--lr", "1"), says("--metric", "-n")),
    ],
)
def test_refusals(start, arguments, message):
    code, said = call("--sync", "allreduce", *arguments)
    assert (code, said) == (2, message) and not Path("started").exists() and not Path("runs").exists()


def test_without_a_variant_there_is_nothing_to_start(start):
    assert start("-n", "2", *TORCH, "a.py") == (2, says("-n 2", "--sync", "--variant"))
