"""Scalars for TensorBoard, read back by its own reader."""

import sys

import pytest

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.report.tensorboard import NAME, TensorBoard, check_tensorboard, scalars_of
from tests.report.conftest import OTHERS, ended, epoch, iteration, run
from tests.says import says

NOW = 1_800_000_000.25


def test_the_scalars_of_events():
    assert scalars_of(iteration(exposed_s=0.25)) == {
        "train/loss": 2.3, "train/accuracy": 0.125, "train/lr": 0.05, "train/images_per_s": 12_345.6,
        "train/exposed_s": 0.25,
    }  # fmt: skip
    assert scalars_of(epoch(test_metrics={"rmse": 0.5})) == {
        "test/loss": 0.75, "test/accuracy": 0.875, "test/rmse": 0.5
    }  # fmt: skip
    assert [bool(scalars_of(event)) for event in (run(), *OTHERS, ended())] == [False, False, True, False, False]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(UsageError, match=says("--tensorboard")):
        check_tensorboard()


@pytest.fixture
def read():
    """read(folder) → {tag: [(step, value), ...]}"""
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: scripts/check-full installs it",
    )

    def read(folder):
        events = accumulators.EventAccumulator(str(folder)).Reload()
        assert events.FirstEventTimestamp() == NOW
        return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    return read


def board(folder, resumed_at=0, warn=pytest.fail):
    return TensorBoard(folder, resumed_at, warn, lambda: NOW)


def test_each_event_can_be_read_at_once(tmp_path, read):
    check_tensorboard()
    sink = board(tmp_path)
    sink.handle(iteration(iteration=1, loss=2.5, exposed_s=0.25))
    assert read(tmp_path)["train/loss"] == [(1, 2.5)]
    sink.handle(iteration(iteration=2, loss=1.5, accuracy=None))
    sink.handle(epoch(iteration=2, test_metrics={"top5_accuracy": 0.5, "f1": None}))
    sink.handle(epoch(iteration=2, test_loss=None, test_accuracy=None))
    scalars = read(tmp_path)
    assert scalars["train/loss"] == [(1, 2.5), (2, 1.5)]
    assert (scalars["train/accuracy"], scalars["train/exposed_s"]) == ([(1, 0.125)], [(1, 0.25)])
    assert {tag: value for tag, value in scalars.items() if tag.startswith("test/")} == {
        "test/loss": [(2, 0.75)], "test/accuracy": [(2, 0.875)], "test/top5_accuracy": [(2, 0.5)],
    }  # fmt: skip
    sink.close(), sink.close()


def test_a_resumed_run_goes_on_in_the_same_folder_and_has_no_step_twice(tmp_path, read):
    first = board(tmp_path)
    for k in range(1, 6):
        first.handle(iteration(iteration=k, loss=float(k)))
    first.handle(epoch(iteration=5))
    first.close()
    again = board(tmp_path, resumed_at=3)
    for k in (4, 5, 6):
        again.handle(iteration(iteration=k, loss=10.0 + k))
    again.close()
    scalars = read(tmp_path)
    assert scalars["train/loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 14.0), (5, 15.0), (6, 16.0)]
    assert not scalars.get("test/loss")
    assert len(list(tmp_path.glob(f"{NAME}*"))) == 2


def test_a_folder_that_cannot_be_written(tmp_path, read):
    with pytest.raises(RingtrainError, match=says("--resume", "No such file or directory")):
        board(tmp_path / "none")
