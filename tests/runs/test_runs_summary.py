"""Run folders are found and summarised, whatever is in them, without reading whole logs. The order of runs."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringtrain.config.option import NEVER
from ringtrain.config.record import config_fields
from ringtrain.errors import UsageError
from ringtrain.report.comparison.rows import METRICS
from ringtrain.report.events import Note
from ringtrain.runs import summary
from ringtrain.runs.summary import RESULTS, RunSummary, lines_backwards, list_runs
from ringtrain.runs.table import differing, sort_runs
from ringtrain.storage.run_folder.lock import is_held, take_lock
from tests.report.conftest import ENDED, EPOCH, ITERATION, RUN
from tests.run_folders import DIVERGED, log_of, make_run
from tests.says import says


@pytest.fixture(autouse=True)
def zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-1")  # one hour east
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def make(tmp_path):
    """make(name, events, outcome, option=value...) → a run folder below tmp_path/runs."""
    return lambda name, *what, **options: make_run(tmp_path / "runs" / name, *what, **options)


def only(folder):
    (run,), notes = list_runs(folder)
    assert not notes
    return run


def test_the_results_of_a_run(make):
    run = only(make("a", lr=0.1, lr_steps=[10, "2ep"]))
    assert run.results == dict.fromkeys(METRICS) | {
        "name": "a", "date": "2026-01-31 23:59:00+01:00", "outcome": "done", "epoch": 1, "iteration": 2,
        "test_loss": 0.1, "test_accuracy": 0.975, "images_per_s": 12_345.6, "ranks": 2,
    }  # fmt: skip
    assert list(run.results) == list(RESULTS) and not set(RESULTS) & set(config_fields())  # no option has such a name
    assert (run.options["lr"], run.options["lr_steps"], run.problem) == (0.1, [10, "2ep"], None)


def test_metrics_of_a_regression(make):
    ended = replace(ENDED, test_accuracy=None, test_metrics={"rmse": 0.5, "unknown": 1.0})
    results = only(make("a", [*log_of(ended=False), ended])).results
    assert (results["rmse"], results["r2"], results["test_accuracy"]) == (0.5, None, None)
    assert "unknown" not in results


@pytest.mark.parametrize(
    ("events", "became", "outcome", "problem"),
    [
        (log_of(), "running", "done", None),
        ([*log_of(ended=False), replace(ENDED, reason="early stop")], "done", "early stop", None),
        ([*log_of(ended=False), DIVERGED], "running", "diverged", "the loss is nan"),
        (log_of(ended=False), "stalled", "stalled", "it is late"),
        (log_of(ended=False), "running", "cut short", None),
    ],
)
def test_the_outcome(make, events, became, outcome, problem):
    run = only(make("a", events, became))
    assert (run.results["outcome"], run.problem) == (outcome, problem)


def test_a_run_is_running_as_long_as_it_has_the_lock(make):
    folder = make("a", log_of(ended=False), "running")
    lock = take_lock(folder)
    assert is_held(folder) and only(folder).results["outcome"] == "running"
    assert only(folder).results["ranks"] == 3  # of this start, by its outcome file
    lock.release()
    assert not is_held(folder) and only(folder).results["outcome"] == "cut short"
    assert not is_held(folder.parent)


def test_a_run_that_goes_on_has_the_last_figures_of_all_its_starts(make):
    again = [replace(RUN, resumed_at=2), replace(ITERATION, iteration=3, images_per_s=7.0)]
    results = only(make("a", [*log_of(), *again], "running")).results
    assert (results["outcome"], results["iteration"], results["images_per_s"]) == ("cut short", 3, 7.0)
    assert (results["test_accuracy"], results["epoch"]) == (0.875, 1)
    results = only(make("b", log_of()[:1], "running")).results  # none of its iterations
    assert (results["iteration"], results["epoch"], results["test_loss"], results["images_per_s"]) == (0, 0, None, None)


def test_a_long_log_is_not_read_whole(make):
    trained = [replace(ITERATION, iteration=k) for k in range(1, 4000)]
    folder = make("a", [*log_of()[:1], *trained, replace(EPOCH, iteration=3999), *trained[-50:]], "running")
    size, before = (folder / "log.jsonl").stat().st_size, read_so_far()
    assert only(folder).results["iteration"] == 3999
    assert read_so_far() - before < size / 4


def read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("block", [1, 3, 7, 1000])
@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\n\nab\n", b"first\nsecond\n\nthe last one is torn"])
def test_lines_backwards(tmp_path, monkeypatch, block, data):
    monkeypatch.setattr(summary, "BLOCK_BYTES", block)
    (tmp_path / "a").write_bytes(data)
    with open(tmp_path / "a", "rb") as file:
        assert list(filter(None, lines_backwards(file))) == data.splitlines(keepends=True)[::-1]


def test_a_line_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "BLOCK_BYTES", 10)
    monkeypatch.setattr(summary, "LINE_BYTES", 100)
    (tmp_path / "a").write_bytes(b"before\n" + b"x" * 1000 + b"\nafter\n")
    with open(tmp_path / "a", "rb") as file:
        assert list(lines_backwards(file)) == [b"after\n"]


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_options_that_a_configuration_lacks_are_off_or_of_an_earlier_version(make):
    options = only(make("a", iterations=7, stage=True, guard=False)).options
    assert (options["epochs"], options["iterations"], options["clip_norm"]) == (None, 7, None)  # not set
    assert (options["keep"], options["check_collectives"]) == (2, False)  # the default; of a former name
    assert "stage" not in options


def test_what_differs(make):
    make("a", lr=0.1, out="runs/a", mixup=0.2, tensorboard=True)
    make("b", lr=0.1, out="runs/b")
    folder = make("c", lr=0.2)
    make("of-scale", lr=0.2, checkpoint_every=NEVER, evaluate_every=NEVER)
    assert differing(list_runs(folder.parent)[0]) == ["lr", "mixup"]
    assert differing(list_runs(folder)[0]) == []


def test_values_that_no_option_has(make):
    folder = make("a")
    (folder / "config.toml").write_text("lr = nan\nmodel = { a = 1 }\nbatch = [2026-01-31, [1]]\nseed = 3\n")
    options = only(folder).options
    assert json.loads(json.dumps(options)) == options
    assert (options["lr"], options["model"], options["seed"]) == ("nan", "{'a': 1}", 3)
    make("b")
    assert {"lr", "model", "batch"} <= set(differing(list_runs(folder.parent)[0]))


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_runs_are_found_in_folders_below(make):
    for name in ("a", "compare/b", ".hidden/c", "a/checkpoints/d", "a/e"):
        make(name)
    top = make("x").parent
    runs, notes = list_runs(top)
    assert ([run.results["name"] for run in runs], notes) == (["a", "a/e", "compare/b", "x"], [])
    assert runs[2].folder == str(top / "compare" / "b")
    (top / "other").mkdir()
    (top / "other" / "checkpoints").mkdir()
    assert len(list_runs(top)[0]) == 4


def test_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for name, words in (("none", ("not", "there")), ("file", ("not", "folder"))):
        with pytest.raises(UsageError, match=says(tmp_path / name, *words)):
            list_runs(tmp_path / name)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def begun(path):
    """No more than a run that was killed before its first record."""
    for each in path.parent.glob("*.*"):
        each.unlink(missing_ok=True) if each.is_file() else None
    (path.parent / ".lock").touch()


LATE = says("it is late")


@pytest.mark.parametrize(
    ("name", "spoil", "listed", "note"),
    [
        ("log.jsonl", lambda path: path.write_bytes(b"\xff\x00{" * 1000), False, says("log.jsonl", "done", LATE)),
        ("log.jsonl", Path.unlink, False, says("log.jsonl", "done", LATE)),
        ("log.jsonl", pipe, False, says("log.jsonl")),
        ("log.jsonl", begun, False, says("log.jsonl")),
        ("config.toml", lambda path: path.write_text("lr = ["), True, says("config.toml")),
        ("config.toml", pipe, True, says("config.toml")),
        ("outcome.json", pipe, True, ""),
    ],
)
def test_a_damaged_folder_is_told_and_breaks_no_list(make, name, spoil, listed, note):
    folder = make("bad")
    spoil(folder / name)
    make("good")
    runs, notes = list_runs(folder.parent)
    assert [run.results["name"] for run in runs] == (["bad", "good"] if listed else ["good"])
    assert len(notes) == bool(note) and all("bad is" in note and "\n" not in note for note in notes)
    assert not note or note.matches(notes[0])


def test_damaged_lines_within_a_log_are_passed_over(make):
    folder = make("a", log_of(ended=False), "running")
    lines = (folder / "log.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "log.jsonl").write_bytes(
        b"".join([b"{\n", *lines, b'{"event": "test"}\n', b'{"event": "end"}\n', b'{"event": "itera'])
    )
    assert only(folder).results["iteration"] == 2


def test_a_name_that_would_move_the_cursor(make):
    folder = make("a\x1b[2Jb", [*log_of(ended=False), Note(text="\x1b[2J")])
    assert list_runs(folder.parent)[0][0].results["name"] == "a\\x1b[2Jb"


# ── the order of runs ─────────────────────────────────────────────────────────────────────────────────────────────────
def run(name="a", date=None, **options):
    return RunSummary(name, dict.fromkeys(RESULTS) | {"name": name, "date": date}, options)


def names(runs, key):
    return "".join(run.value("name") for run in sort_runs(runs, key))


def test_the_order():
    runs = [run("a", lr=0.3), run("b", lr=0.1), run("c", lr=None), run("d", lr=0.2)]
    assert (names(runs, "lr"), names(runs, "-lr"), names(runs, "-name")) == ("bdac", "adbc", "dcba")
    dated = [run("a", date="2026-02"), run("b", date=None), run("c", date="2026-01")]
    assert (names(dated, None), names(dated, "-date")) == ("bca", "acb")
    mixed = [run("a", warmup="5ep"), run("b", warmup=100), run("c", warmup=20)]
    assert names(mixed, "warmup") == "cba"
    assert names([run("a", augment=True), run("b", augment=False)], "augment") == "ba"
    with pytest.raises(UsageError, match=says("--sort", "'lrr'")):
        sort_runs(runs, "-lrr")
