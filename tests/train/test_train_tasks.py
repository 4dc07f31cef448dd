"""Losses of every kind of label: the same training and the same metrics at any number of ranks; a run of values, from
its flags to its log, its screen, its best checkpoint and its evaluation."""

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from small_runs import everywhere, fake_gpu, on_ranks
from task_runs import TASKS, UNITS, data_of, task_run, train_task

import ringtrain
from ringtrain.cli import evaluate
from ringtrain.config.record import make_config
from ringtrain.errors import ConfigError, DivergedError, ModelError, UsageError
from ringtrain.nn import spec
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.comparison.rows import rows_of
from ringtrain.report.comparison.table import GROUPS, NAME
from ringtrain.show.tables import fitting_tables, plain_lines
from ringtrain.storage.checkpoint import store
from ringtrain.train.assembly import data as data_room
from ringtrain.train.assembly.recipe import best_by_of
from ringtrain.train.load import load, score_of
from tests.runs import records
from tests.says import says

DIVIDED = ("mae of vectors", "bce of images")  # two fully connected layers after another one, to divide


@cache
def serial(task, **flags):
    return everywhere(1, lambda t: train_task(t, task, **flags))[0]


def is_as_serial(ranks, task, tolerance=1e-12):
    losses, weights = serial(task)
    for own_losses, own_weights in ranks:
        np.testing.assert_allclose(own_losses, losses, rtol=tolerance)
        np.testing.assert_allclose(own_weights, weights, rtol=0, atol=tolerance * np.abs(weights).max())


@pytest.mark.parametrize("task", TASKS)
def test_a_loss_is_the_mean_over_labelled_elements_of_the_whole_batch(task):
    """Three ranks, of batches with missing labels and a tail, in micro-batches."""
    losses, _ = serial(task)
    assert losses[-1] < losses[0] or task == "dense ce"
    is_as_serial(everywhere(3, lambda t: train_task(t, task, accumulate=2)), task)


@pytest.mark.parametrize("task", ["dense ce", "mse of fields", "huber of numbers"])
def test_a_rank_that_reads_for_all_scatters_labels_of_any_shape(task):
    is_as_serial(everywhere(3, lambda t: train_task(t, task, sync="master")), task)


@pytest.mark.parametrize("task", DIVIDED)
@pytest.mark.parametrize("fc", ["hybrid", "pipeline"])
def test_labels_of_any_shape_travel_to_fully_connected_layers(task, fc):
    front, *_ = everywhere(3, lambda t: train_task(t, task, fc=fc, accumulate=2))
    is_as_serial([front], task)


@pytest.mark.parametrize("task", ["ce", "mse of fields", "bce"])
def test_a_reproducible_run_has_the_same_bits(task):
    flags = {"reproducible": True, "shards": 4}
    (losses, weights), *others = [everywhere(n, lambda t: train_task(t, task, **flags))[0] for n in (1, 2, 4)]
    for own_losses, own_weights in others:
        assert own_losses == losses and own_weights.tobytes() == weights.tobytes()


@pytest.mark.parametrize("task", ["dense ce", "mse of fields", "bce of images", "huber of numbers"])
def test_a_device_trains_and_scores_as_the_host(task):
    """Its memory is read by operations alone."""

    def on(transport, ops=None):
        run, _ = task_run(transport, task, ops=ops)
        return train_task(transport, task, ops=ops), run.evaluator.score(run.data.train, 12, by_class=True)

    def on_device(transport):
        return on(*fake_gpu(transport, dtype="float64", hasty=True))

    ((losses, weights), wanted), ((device_losses, device_weights), score) = (
        everywhere(1, on)[0],
        everywhere(1, on_device)[0],
    )
    np.testing.assert_allclose(device_losses, losses, rtol=1e-12)
    np.testing.assert_allclose(device_weights, weights, rtol=0, atol=1e-12 * np.abs(weights).max())
    assert score.metrics == pytest.approx(wanted.metrics, rel=1e-12) and score.accuracy == wanted.accuracy


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────
def score(transport, task, labels=None, **flags):
    run, _ = task_run(transport, task, labels, **flags)
    return run.evaluator.score(run.data.train, 12, 12 // transport.size, by_class=True)


@pytest.mark.parametrize("task", TASKS)
def test_metrics_are_the_same_at_any_number_of_ranks(task):
    (one,), *others = [everywhere(n, lambda t: score(t, task)) for n in (1, 2, 3)]
    for rank in (each for ranks in others for each in ranks):
        if one.classes is not None:
            for name in ("labelled", "predicted", "hits"):
                np.testing.assert_array_equal(getattr(rank.classes, name), getattr(one.classes, name))
            assert rank.metrics == one.metrics and rank.accuracy == one.accuracy
        assert rank.metrics == pytest.approx(one.metrics, rel=1e-13) and rank.loss == pytest.approx(one.loss, 1e-13)
        assert rank.examples == one.examples


def test_metrics_of_a_grain_have_the_same_bits_and_are_of_the_outputs():
    def whole(transport):
        run, _ = task_run(transport, "mse of fields")
        return run.evaluator.score(run.data.train, 4 * transport.size, 4), run.data.train.labels.astype(np.float64)

    ((one, labels),), two = everywhere(1, whole), everywhere(2, whole)
    assert all((each.loss, each.metrics) == (one.loss, one.metrics) for each, _ in two)
    assert one.accuracy is None and one.metrics["rmse"] ** 2 == pytest.approx(one.loss, rel=1e-12)
    assert one.metrics["r2"] == pytest.approx(1 - one.loss / labels.var(), rel=1e-9)


def test_a_network_learns_standardised_labels_and_metrics_and_predictions_are_in_their_unit(run_task, report, tmp_path):
    data = data_of("mse of units")
    labels, (mean, std) = data.train.labels, data.label_moments
    scaled = everywhere(1, lambda t: train_task(t, "mae of vectors", labels=(labels - mean) / std, loss="mse"))[0]
    assert serial("mse of units")[0] == scaled[0]
    run_task("mse of units")
    outputs = ringtrain.load(tmp_path / "run").predict(data.train.images)
    assert report()[1].metrics["rmse"] == pytest.approx(np.sqrt(np.square(outputs - labels).mean()), rel=1e-4)
    for task, text in (("ce", TASKS["ce"][0]), ("bce", TASKS["bce"][0])):
        output = spec.parse_model(UNITS + text, task).output
        with pytest.raises(ModelError, match=says("output", "mse")):
            output.unit((3,), None if task == "ce" else data.label_moments, accuracy=True)


# ── examples that no network can learn ────────────────────────────────────────────────────────────────────────
def spoiled(task, value, example):
    labels = data_of(task).train.labels.copy()
    labels[example] = value
    return labels


BAD = {
    "nan": ("mse of fields", np.nan, "nan"),
    "infinite": ("huber of numbers", np.inf, "inf"),
    "no class": ("dense ce", 9, "9"),
    "no share": ("bce", 3, "3"),
}


@pytest.mark.parametrize("task, value, shown", BAD.values(), ids=BAD)
def test_a_label_that_makes_the_loss_nan_ends_the_run_by_name(task, value, shown):
    labels = spoiled(task, value, 23)
    message = says("--loss", "23", shown, TASKS[task][1])
    for work in (lambda t: train_task(t, task, labels=labels), lambda t: score(t, task, labels)):
        errors = on_ranks(2, work)
        assert [str(error) for error in errors] == [message, message]
        assert all(isinstance(error, DivergedError) and error.everywhere for error in errors)


def test_an_input_that_is_not_finite_ends_the_run_by_name():
    for work, flags in ((train_task, {}), (score, {}), (train_task, {"mixup": 0.4})):
        errors = on_ranks(2, lambda t, work=work, flags=flags: work(t, "ce", nan_at=23, **flags))
        assert [str(error) for error in errors] == [says("23", "nan")] * 2


def test_the_best_score_has_the_highest_accuracy_or_the_lowest_loss():
    assert [best_by_of(make_config(loss=loss)) for loss in ("ce", "bce", "mse")] == ["accuracy", "accuracy", "loss"]
    assert best_by_of(make_config(best_by="loss")) == "loss"
    with pytest.raises(ConfigError, match=says("--best-by", "--loss", "mse")):
        best_by_of(make_config(loss="mse", best_by="accuracy"))


# ── from flags to files ───────────────────────────────────────────────────────────────────────────────────────────────
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
    assert report(output=tmp_path / "m.json")[0][-1] == says(tmp_path / "m.json")
    for name, words in (("m.json", "--force"), ("m.csv", ".json")):
        with pytest.raises(UsageError, match=says(words)):
            evaluate._check_output(tmp_path / name, force=False)
    values = json.loads((tmp_path / "m.json").read_text())
    assert values["confusion"] == matrix and len(values["classes"]) == 4
    # Classes of the same name stay apart.
    names = ["cat", "cat", "dog", "=cat"]
    monkeypatch.setattr(data_room, "open_data", lambda *_: replace(data_of("dense ce"), classes=tuple(names)))
    report(output=tmp_path / "m.json")
    values = json.loads((tmp_path / "m.json").read_text())
    assert [each["class"] for each in values["classes"]] == names and values["confusion"] == matrix


def test_values_have_no_classes(run_task, report, tmp_path):
    """And those that do not exclude one another are not confused."""
    run_task("huber of numbers")
    for flag in ("per_class", "confusion"):
        with pytest.raises(UsageError, match=says("--loss", "huber")):
            report(**{flag: True})
    report(output=tmp_path / "m.json")
    assert {"loss", "rmse", "mae", "r2"} <= json.loads((tmp_path / "m.json").read_text()).keys()
    (row,) = rows_of([read_run("run", "run")])  # runs of values are compared by their metrics
    assert row["test_accuracy"] is None and row["rmse"] > 0 and row["mean_iou"] is None
    head = "\n".join(line for table in fitting_tables(NAME, GROUPS, [row], 300) for line in plain_lines(table))
    assert "RMSE" in head and "accuracy" not in head
    shutil.rmtree(tmp_path / "run")
    run_task("bce of images")
    assert [line.split()[0] for line in report(per_class=True)[0][4:]] == ["0", "1", "2"]
    with pytest.raises(UsageError, match=says("--confusion", "--loss", "--per-class", "3", "bce")):
        report(confusion=True)
