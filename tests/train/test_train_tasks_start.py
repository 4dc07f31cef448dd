"""A run of values, from its flags to its log, its screen, its best checkpoint and its evaluation."""

import csv
import json
import shutil

import pytest
from task_runs import TASKS, data_of

from ringtrain.cli import evaluate
from ringtrain.errors import ConfigError, UsageError
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.comparison.rows import rows_of
from ringtrain.report.comparison.table import GROUPS, NAME
from ringtrain.show.tables import fitting_tables, plain_lines
from ringtrain.storage.checkpoint import store
from ringtrain.train.assembly import data as data_room
from ringtrain.train.load import load, score_of
from tests.runs import records
from tests.says import says


@pytest.fixture
def run_task(train, tmp_path, monkeypatch):
    """run_task(task, flag=value...): a run on the task's data."""

    def run(task, **flags):
        text, loss, _ = TASKS[task]
        (tmp_path / "net.toml").write_text(text)
        monkeypatch.setattr(data_room, "open_data", lambda *_: data_of(task))
        train(**{"loss": loss, "batch": 10, "iterations": 12, "lr": 0.1, "out": "run", **flags})

    return run


def test_a_run_of_values_shows_no_accuracy(run_task, drawn, tmp_path, capsys):
    run_task("mse of fields", evaluate_every=4)
    said = capsys.readouterr().out
    (start,), (end,) = records(tmp_path / "run", "start"), records(tmp_path / "run", "end")
    assert (start["loss"], start["metrics"], start["accuracy"]) == ("mse", ["rmse", "mae", "r2"], False)
    assert "acc" not in said.replace("accumulate", "") and f"RMSE {end['test_metrics']['rmse']:.4g}" in said
    assert end["test_accuracy"] is None and end["test_metrics"]["rmse"] ** 2 == pytest.approx(end["test_loss"])
    assert {each["accuracy"] for each in records(tmp_path / "run", "iteration")} == {None}
    epochs = records(tmp_path / "run", "epoch")
    assert {each["train_accuracy"] for each in epochs} == {None}
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000


def test_the_best_checkpoint_of_values_has_the_lowest_loss(run_task, tmp_path):
    """The learning rate is too high from the eighth iteration on."""
    run_task("mae of sequences", evaluate_every=4, lr=0.05, lr_policy="multistep", lr_steps=(8,), lr_gamma=40.0)
    losses = [each["test_loss"] for each in records(tmp_path / "run", "evaluation")]
    losses += [each["test_loss"] for each in records(tmp_path / "run", "epoch") if each["test_loss"] is not None]
    best = store.load_checkpoint(tmp_path / "run" / "checkpoints" / "best.h5")
    assert best.best == min(losses) and best.iteration < 12


def test_an_unknown_loss_is_refused_before_the_data_are_read(run_task):
    with pytest.raises(ConfigError, match=says("--loss", "--plugin", "mea")):
        run_task("mae of sequences", loss="mea")


# ── ringtrain evaluate ────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def report(alone, capsys):
    """report(flag=value...): what `ringtrain evaluate run` prints."""

    def tell(per_class=False, confusion=False, output=None, as_json=False):
        trained = load(alone, "run", False, {}, "test")
        score = score_of(alone, trained, by_class=True)
        capsys.readouterr()
        evaluate._check_classes(score, trained.loss.name, per_class, confusion)
        evaluate._report(trained, "test", score, per_class, confusion, output, as_json)
        return capsys.readouterr().out.splitlines(), score

    return tell


def test_dense_classes_are_evaluated_by_class(run_task, report, tmp_path, monkeypatch):
    run_task("dense ce")
    said, score = report(per_class=True, confusion=True)
    assert says(f"{score.examples:,}", "37").matches(said[1]) and "mIoU" in said[1]
    assert said[3].split() == ["class", "labelled", "predicted", "precision", "recall", "f1", "iou"]
    assert [line.split()[0] for line in said[4:8]] == list("abcd")
    matrix = [list(map(int, line.split()[1:])) for line in said[-4:]]
    assert matrix == score.classes.confusion.tolist() and sum(map(sum, matrix)) == score.examples
    hits = sum(matrix[k][k] for k in range(4))
    assert score.accuracy == hits / score.examples
    ((line,), _) = report(as_json=True)
    assert json.loads(line)["mean_iou"] == score.metrics["mean_iou"]
    # All of them go to a file.
    for name in ("m.json", "m.csv"):
        assert report(output=tmp_path / name)[0][-1] == says(tmp_path / name)
        with pytest.raises(UsageError, match=says("--force")):
            evaluate._check_output(tmp_path / name, force=False)
    with pytest.raises(UsageError, match=says("metrics", "csv")):
        evaluate._check_output(tmp_path / "m.txt", force=False)
    values = json.loads((tmp_path / "m.json").read_text())
    assert values["confusion"] == matrix and len(values["classes"]) == 4
    rows = list(csv.DictReader((tmp_path / "m.csv").read_text().splitlines()))
    assert [int(row["as b"]) for row in rows] == score.classes.confusion[:, 1].tolist()
    # Classes of the same name keep their columns.
    names = ["cat", "cat", "dog", "=cat"]
    monkeypatch.setattr(evaluate, "_names", lambda trained, count: names)
    report(output=tmp_path / "m.csv")
    head, *rows = csv.reader((tmp_path / "m.csv").read_text().splitlines())
    assert head[-4:] == ["as cat", "as cat", "as dog", "as =cat"] and [row[0] for row in rows] == names
    assert [list(map(int, row[-4:])) for row in rows] == matrix


def test_values_have_no_classes(run_task, report, tmp_path):
    """And those that do not exclude one another are not confused."""
    run_task("huber of numbers")
    for flag in ("per_class", "confusion"):
        with pytest.raises(UsageError, match=says("--loss", "huber")):
            report(**{flag: True})
    report(output=tmp_path / "m.csv")
    (row,) = csv.DictReader((tmp_path / "m.csv").read_text().splitlines())
    assert {"loss", "rmse", "mae", "r2"} <= row.keys()
    (row,) = rows_of([read_run("run", "run")])  # runs of values are compared by their metrics
    assert row["test_accuracy"] is None and row["rmse"] > 0 and row["mean_iou"] is None
    head = "\n".join(line for table in fitting_tables(NAME, GROUPS, [row], 300) for line in plain_lines(table))
    assert "RMSE" in head and "accuracy" not in head
    shutil.rmtree(tmp_path / "run")
    run_task("bce of images")
    assert [line.split()[0] for line in report(per_class=True)[0][4:]] == ["0", "1", "2"]
    with pytest.raises(UsageError, match=says("--confusion", "--loss", "--per-class", "3", "bce")):
        report(confusion=True)
