"""``ringtrain scale`` as a user runs it, with a launcher that copies logs in place of training."""

import csv
import json
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from ringtrain.cli.commands import ended_by_signals, last_words
from ringtrain.cli.scale import scale
from ringtrain.errors import Interrupted
from ringtrain.report.events import record
from ringtrain.report.sinks import JsonLines
from tests.cli_calls import call as call_command
from tests.readers import EVENTS
from tests.says import says

# The run's folder is behind the last --out. Eight ranks do not start; the others have a log of so many ranks.
LAUNCHER = """#!/bin/sh
ranks=$1 before= last=
for word; do [ "$before" != --out ] || last=$word; before=$word; done
echo "$@" >>started
[ "$ranks" != 8 ] || { echo "There are not enough slots"; echo "--------"; exit 1; }
mkdir -p "$last/checkpoints" && cp "log-$ranks.jsonl" "$last/log.jsonl"
"""
TRAIN = ("--", "train", "--model", "lenet", "--synthetic", "--batch", "60")


call = partial(call_command, scale)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(arguments) → (exit code, what it says), in a folder with the launcher."""
    monkeypatch.chdir(tmp_path)
    Path("launch").write_text(LAUNCHER)
    Path("launch").chmod(0o755)
    started, *_, ranks, ended = EVENTS
    for count in (1, 2, 4):
        log = JsonLines(Path(f"log-{count}.jsonl"), None)
        fields = {**record(started), "ranks": count, "batch": 60, "hosts": ["a"] * count}
        fields.pop("event")
        log.handle(type(started)(**fields))
        log.handle(ranks)
        end = {**record(ended), "images_per_s": 100.0 * count**0.5}
        end.pop("event")
        log.handle(type(ended)(**end))
        log.close()
    return lambda *arguments: call("--launcher", "./launch {ranks}", *arguments)


def started():
    """(ranks, batch, folder) of each run."""
    lines = [line.split() for line in Path("started").read_text().splitlines()]
    return [(int(words[0]), int(words[words.index("--out") - 1]), words[-1]) for words in lines]


def test_rounds_are_interleaved_and_all_is_written(run):
    code, output = run(
        "-n", "4,1", "--rounds", "2", "--out", "s", "--csv", "s.csv", "--json", "s.json", "-o", "s.svg", *TRAIN
    )
    assert code == 0, output
    assert started() == [(n, 60, f"s/strong-{n}-round-{k}") for k in (1, 2) for n in (1, 4)]
    assert re.search(r"strong +4 +1 +60 +200 \[200, 200\] +300 +2.00 \[2.00, 2.00\] +50 ", output), output
    assert Path("started").read_text().count("--checkpoint-every 1000000000 --evaluate-every 1000000000 ") == 4
    assert says("50 %", 2, "s.svg").matches(output)
    content = json.loads(Path("s.json").read_text())
    assert [(row["ranks"], row["speedup"]) for row in content["rows"]] == [(1, 1.0), (4, 2.0)]
    assert [(each["ranks"], each["round"]) for each in content["runs"]] == [(1, 1), (4, 1), (1, 2), (4, 2)]
    assert content["command"] == "ringtrain train --model lenet --synthetic --batch 60" and content["failed"] == {}
    assert Path("s/scale.json").read_text() == Path("s.json").read_text()
    assert [row["ranks"] for row in csv.DictReader(Path("s.csv").read_text().splitlines())] == ["1", "4"]
    assert (
        "<!-- digits on digits -->" in Path("s.svg").read_text() and not Path("s/strong-1-round-1/checkpoints").exists()
    )


def test_weak_multiplies_the_batch_and_one_rank_serves_both(run):
    code, output = run("-n", "1,2", "--rounds", "1", "--strong", "--weak", "--out", "s", *TRAIN)
    assert code == 0, output
    assert [(ranks, batch) for ranks, batch, _ in started()] == [(1, 60), (2, 60), (2, 120)]
    kinds = [(row["scaling"], row["ranks"]) for row in json.loads(Path("s/scale.json").read_text())["rows"]]
    assert kinds == [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
    assert says("round", "intervals").matches(output)


def test_ranks_that_do_not_start_are_told_once_and_the_others_count(run):
    code, output = run("-n", "1,2,8", "--rounds", "2", "--out", "s", *TRAIN)
    assert code == 1 and [ranks for ranks, *_ in started()] == [1, 2, 8, 1, 2]
    failed = json.loads(Path("s/scale.json").read_text())["failed"]
    assert failed == {"strong-8": says("strong-8", "status 1", "s/strong-8-round-1.txt", "There are not enough slots")}
    assert output.count(failed["strong-8"]) == 1
    assert re.search(r"\nstrong +2 ", output) and not re.search(r"\nstrong +8 ", output)


def test_a_launcher_that_starts_other_ranks_is_told(run):
    Path("log-2.jsonl").write_bytes(Path("log-1.jsonl").read_bytes())
    code, output = run("-n", "1,2", "--rounds", "1", "--out", "s", *TRAIN)
    assert code == 1 and says("ranks: 1;", "launcher").matches(output)
    assert [row["ranks"] for row in json.loads(Path("s/scale.json").read_text())["rows"]] == [1]


def test_the_error_of_a_run_is_told_and_a_file_in_place_of_the_folder_of_runs(tmp_path, run):
    (tmp_path / "o.txt").write_text("ringtrain 0.1.0\nringtrain: --batch 60 is too small\nprterun: x\n")
    assert last_words(tmp_path / "o.txt") == "ringtrain: --batch 60 is too small"
    (tmp_path / "o.txt").write_text(f"  File x.py\nSyntaxError: no\n{60 * '-'}\nprterun detected\n")
    assert last_words(tmp_path / "o.txt") == "File x.py\nSyntaxError: no"
    Path("runs").touch()
    assert run("-n", "1,2", *TRAIN) == (2, says("--out", "runs", "File exists"))


SCRIPT = ("--", "python", "-m", "ringtrain.torch", "--sync", "sharded", "t.py", "--batch", "{batch}")


def log_batches(batches):
    for ranks, batch in batches.items():
        first, _, rest = Path(f"log-{ranks}.jsonl").read_text().partition("\n")
        Path(f"log-{ranks}.jsonl").write_text(json.dumps(json.loads(first) | {"batch": batch}) + "\n" + rest)


def test_a_script_has_its_share_of_the_batch_in_strong_scaling_and_all_of_it_in_weak(run):
    log_batches({2: 120})
    code, output = run("-n", "1,2", "--rounds", "2", "--weak", "--batch", "60", "--out", "s", "-o", "s.svg", *SCRIPT)
    assert code == 0, output
    log_batches({2: 60})
    Path("started").rename("weak")
    code, output = run("-n", "1,2", "--rounds", "1", "--batch", "60", "--out", "t", *SCRIPT)
    assert code == 0, output
    strong, weak = ([line.split() for line in Path(name).read_text().splitlines()] for name in ("started", "weak"))
    assert [(words[0], words[-1]) for words in weak] == [("1", "60"), ("2", "60")] * 2
    assert [(words[0], words[-1]) for words in strong] == [("1", "60"), ("2", "30")]
    assert strong[1][4:] == ["--sync", "sharded", "--out", "t/strong-2-round-1", "t.py", "--batch", "30"]
    rows = [json.loads(Path(f"{name}/scale.json").read_text()) for name in "st"]
    assert [[row["batch"] for row in each["rows"]] for each in rows] == [[60, 120], [60, 60]]
    assert rows[0]["command"] == "python -m ringtrain.torch --sync sharded t.py --batch '{batch}'"


def test_a_script_that_divides_otherwise_or_makes_no_step_is_a_failure_with_its_reason(run):
    code, output = run("-n", "1,2", "--rounds", "1", "--weak", "--batch", "60", "--out", "s", *SCRIPT)
    assert code == 1 and says("weak-2", 60, 2, "weak", 120, "{batch}").matches(output)
    assert [row["ranks"] for row in json.loads(Path("s/scale.json").read_text())["rows"]] == [1]
    Path("log-2.jsonl").write_text("")
    code, output = run("-n", "1,2", "--rounds", "1", "--weak", "--batch", "60", "--out", "t", *SCRIPT)
    assert code == 1 and says("weak-2", "no log", "optimizer").matches(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "1,2", *SCRIPT), says("{batch}", "--batch B")),
        (("-n", "1,2", "--batch", "6", *SCRIPT[:-2]), says("{batch}", "missing")),
        (("-n", "1,2", *SCRIPT[:-2]), says("strong", "{batch}", "--weak")),
        (("-n", "1,3,4", "--batch", "6", *SCRIPT), says("--batch 6", 4)),
        (("-n", "1,2", "--batch", "6", *TRAIN), says("--batch 6", "train")),
        (("-n", "1,2", "--weak", "--", *SCRIPT[1:4], "--out", "o", "t.py"), says("--out")),
        (("-n", "1,2", "--weak", "--", "mpirun", *SCRIPT[1:-2]), says("mpirun")),
        (("-n", "1,2", "--weak", "--", *SCRIPT[1:4], "--sink", "x", "t.py"), says("--sink")),
        (("-n", "2", *TRAIN), says("-n 2")),
        (("-n", "2,2", *TRAIN), says("-n 2,2")),
        (("-n", "0,2", *TRAIN), says("-n 0,2")),
        (("-n", "1,x", *TRAIN), says("'x'")),
        (("-n", "1,2", "--rounds", "0", *TRAIN), "^0 is not in the range"),
        (("-n", "1,2"), says("got nothing")),
        (("-n", "1,2", "--", "evaluate", "runs/a"), says("got 'evaluate'")),
        (("-n", "1,2", *TRAIN, "--lr", "x"), "'x' is not a valid float"),
        (("-n", "1,2", "--", "train", "--model", "lenett"), "lenett"),
        (("-n", "1,2", *TRAIN, "--out", "o"), says("--out", "begins", "anew")),
        (("-n", "1,2", *TRAIN, "--resume", "o"), says("--resume", "begins", "anew")),
        (("-n", "1,2", "--csv", "no/s.csv", *TRAIN), says("no/s.csv")),
        (("-n", "1,2", "-o", "s.pgn", *TRAIN), "--plot s.pgn: .*'pgn'"),
        (("-n", "1,2", "--launcher", "sh", *TRAIN), says("--launcher", "'sh'")),
        (("-n", "1,2", "--out", ".", *TRAIN), says("--out", ".", "File exists")),
    ],
)
def test_refusals(run, arguments, message):
    code, said = run(*arguments)
    assert code == 2 and re.search(message, said), said
    assert not Path("started").exists() and not Path("runs").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_end_is_an_interruption(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=says("s/scale.json")), ended_by_signals(Path("s/scale.json")):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
