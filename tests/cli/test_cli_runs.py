"""``ringtrain runs`` as a user runs it."""

import csv
import json
import re
from dataclasses import replace

import pytest

from ringtrain.cli.main import run
from tests.report.conftest import ITERATION, RUN
from tests.run_folders import log_of, make_run
from tests.says import says


@pytest.fixture
def make(tmp_path):
    """make(name, events, outcome, option=value...) → a run folder in runs/."""
    return lambda name, *what, **options: make_run(tmp_path / "runs" / name, *what, **options)


@pytest.fixture
def call(make, tmp_path, monkeypatch, capfd):
    """call(words...) → (exit code, standard output, standard error), in a folder with three runs in runs/."""
    monkeypatch.chdir(tmp_path)
    make("slow", log_of(accuracy=0.9, date="2026-01-01T12:00:00+00:00"), lr=0.01, optimizer="adam")
    make("fast", log_of(accuracy=0.95, date="2026-01-02T12:00:00+00:00"), lr=0.1, seed=3)
    make("torn", log_of(ended=False, date="2026-01-03T12:00:00+00:00"), "running", lr=0.1)

    def call(*words, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        return run(["runs", *words]), *capfd.readouterr()

    return call


def test_the_table_has_results_and_what_differs_in_several_tables_if_need_be(call):
    code, said, _ = call(width=160)
    assert code == 0
    head, *rows = said.split("\n\n")[0].strip().splitlines()
    assert head.split() == [
        "run", "outcome", "test_loss", "test_accuracy", "optimizer", "lr", "seed", "epoch", "iteration",
        "images_per_s", "ranks", "date",
    ]  # fmt: skip
    assert [row.split()[:4] for row in rows] == [
        ["slow", "done", "0.1000", "90.00%"], ["fast", "done", "0.1000", "95.00%"],
        ["torn", "cut", "short", "0.7500"],
    ]  # fmt: skip
    assert rows[0].split()[4:6] == ["adam", "0.01"] and "2026-01-01" in rows[0]
    _, said, _ = call(width=70)
    assert max(map(len, said.splitlines())) <= 70
    assert [table.split()[0] for table in said.strip().split("\n\n")] == ["run", "run"]
    assert re.search(r"^run +outcome +test_loss +test_accuracy +optimizer +lr +seed$", said, re.MULTILINE)


def test_the_order(call):
    code, said, _ = call("--sort", "-test_accuracy")
    assert code == 0
    assert re.findall(r"^(\w+)  +(?:done|cut short)", said, re.MULTILINE) == ["fast", "slow", "torn"]


def test_json_and_csv_in_files_and_on_standard_output(call, tmp_path, make):
    (make("bad") / "log.jsonl").unlink()
    code, said, _ = call("--json", "r.json", "--csv", "r.csv", "--sort", "name")
    assert code == 0 and "note: bad is not listed" in said and "fast" in said
    content = json.loads((tmp_path / "r.json").read_text())
    assert [row["name"] for row in content["rows"]] == ["fast", "slow", "torn"]
    assert content["differing"] == ["optimizer", "lr", "seed"] and len(content["notes"]) == 1
    assert content["rows"][0]["options"]["lr"] == 0.1 and content["rows"][0]["folder"] == "runs/fast"
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert [(row["name"], row["lr"], row["test_accuracy"], row["clip_norm"]) for row in rows] == [
        ("fast", "0.1", "0.95", ""), ("slow", "0.01", "0.9", ""), ("torn", "0.1", "0.875", "")
    ]  # fmt: skip
    code, said, warned = call("--json", "-")
    assert code == 0 and len(json.loads(said)["rows"]) == 3 and "note: bad is not listed" in warned
    _, said, _ = call("--csv", "-")
    assert len(said.splitlines()) == 4 and said.startswith("name,date,outcome")


def test_without_runs_or_iterations_and_of_many_ranks_one_lists(call, tmp_path, make, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert call("empty")[:2] == (0, says("note: ", "no run", "empty"))
    make("none", log_of()[:1])
    assert call("runs/none", "--log", "-")[1].startswith("iteration,epoch,loss")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert call() == (0, "", "")


def test_the_log_as_csv(call, make, tmp_path):
    first = [replace(ITERATION, iteration=k, seconds=5.0 + k, images_per_s=64.0, exposed_s=0.25) for k in (1, 2)]
    again = [replace(RUN, resumed_at=2), replace(ITERATION, iteration=3, seconds=1.0, images_per_s=64.0)]
    make("resumed", [*log_of()[:1], *first, log_of()[3], *again], "running")
    code, said, _ = call("runs/resumed", "--log", "log.csv")
    assert (code, said.strip()) == (0, says("log.csv", "3 iterations"))
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == (
        "iteration,epoch,loss,accuracy,lr,examples,images_per_s,seconds,exposed_s,test_loss,test_accuracy"
    )
    rows = list(csv.DictReader(lines))
    assert [(row["iteration"], row["exposed_s"], row["test_accuracy"]) for row in rows] == [
        ("1", "0.25", ""), ("2", "0.25", "0.875"), ("3", "", "")
    ]  # fmt: skip
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds) and seconds[0] == 1.0  # an iteration of 64 images at 64 a second
    assert call("runs/resumed", "--log", "-")[1].splitlines() == lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), says("nowhere", "not", "there")),
        (("--sort", "accurracy"), says("--sort", "'accurracy'")),
        (("--json", "-", "--csv", "-"), says("--json", "--csv")),
        (("--json", "no/r.json"), says("no/r.json")),
        (("runs/slow", "--log", "no/l.csv"), says("no/l.csv")),
        (("runs/slow", "--log", "l.csv", "--sort", "lr"), says("--log", "--sort", "--json", "--csv")),
        (("--log", "l.csv"), says("runs", "log.jsonl")),
    ],
)
def test_refusals(call, words, message):
    code, said, warned = call(*words)
    assert (code, said) == (2, "") and re.match(f"ringtrain: {message}", warned), warned
