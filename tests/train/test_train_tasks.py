"""Losses of every kind of label: the same training and the same metrics at any number of ranks."""

from functools import cache

import numpy as np
import pytest
from small_runs import everywhere, on_ranks
from task_runs import TASKS, data_of, task_run, train_task

from ringtrain.config.record import make_config
from ringtrain.errors import ConfigError, DivergedError
from ringtrain.train.assembly.recipe import best_by_of
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.transports import DeviceTransport
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
        ops = FakeGpuOps(HostRuntime(True), "float64")
        return on(DeviceTransport(transport, ops), ops)

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
