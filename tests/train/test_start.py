"""`ringtrain train` from flags to files, in this process: what it leaves, how it goes on, and what it refuses."""

import json

import h5py
import numpy as np
import pytest
from small_runs import DROPOUT_NET

from ringtrain.checkpoint import store
from ringtrain.config import parse_toml
from ringtrain.errors import CheckpointError, ConfigError, DataError, DivergedError, Interrupted, ModelError, UsageError
from ringtrain.train.load import load
from ringtrain.train.signals import StopFlag
from ringtrain.train.start import start
from ringtrain.transport.loopback import LoopbackWorld


@pytest.fixture
def alone():
    return LoopbackWorld(1).transport(0)


@pytest.fixture
def train(alone, tmp_path, monkeypatch):
    """train(flag=value...): a run of a small net on the shipped digits, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.toml").write_text(DROPOUT_NET)

    def run(run_file=None, **flags):
        start(alone, run_file, {"model": "net.toml", "data": "digits", "ops": "reference", **flags})

    return run


def records(folder, kind=None):
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in found if kind in (None, record["event"])]


# ── what a run leaves ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_records_of_a_run(train, tmp_path):
    train(out="run", iterations=50, checkpoint_every=20, evaluate_every=25, keep=2)
    folder = tmp_path / "run"
    kinds = [record["event"] for record in records(folder)]
    assert kinds[0] == "start" and kinds[-1] == "end"
    assert kinds.count("iteration") == 50 and kinds.count("epoch") == 1 and kinds.count("evaluation") == 2
    (end,) = records(folder, "end")
    assert {"iterations", "ranks", "test_accuracy", "images_per_s", "weights_sha256"} <= end.keys()
    assert 0.3 < end["test_accuracy"] <= 1
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.h5", "iteration-00000040.h5", "iteration-00000050.h5"]
    assert (folder / "curves.png").stat().st_size > 5000
    stored = parse_toml((folder / "config.toml").read_text(), "config")
    assert (stored["batch"], stored["iterations"], stored["lr"]) == (30, 50, 0.05)  # the recipe's, the flags'


def test_flags_win_over_the_run_file_which_wins_over_the_recipe(train, tmp_path):
    (tmp_path / "run.toml").write_text("batch = 40\nlr = 0.5\niterations = 2\n")
    train("run.toml", out="run", lr=0.25)
    stored = parse_toml((tmp_path / "run" / "config.toml").read_text(), "config")
    assert (stored["batch"], stored["lr"], stored["momentum"], stored["iterations"]) == (40, 0.25, 0.9, 2)


def test_the_same_seed_gives_the_same_weights(train, tmp_path):
    for out in ("a", "b"):
        train(out=out, iterations=8)
    train(out="c", iterations=8, seed=1)
    a, b, c = (records(tmp_path / out, "end")[0]["weights_sha256"] for out in "abc")
    assert a == b != c


def test_synthetic_data_is_one_batch(train, tmp_path):
    train(out="run", synthetic=True, iterations=30, batch=20, lr=0.1, data=None)
    losses = [record["loss"] for record in records(tmp_path / "run", "iteration")]
    assert losses[-1] < 0.7 * losses[0]  # it learns it by heart
    assert records(tmp_path / "run", "end")[0]["test_accuracy"] is None


# ── going on ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_resuming_is_exact_where_nothing_else_changes(train, tmp_path):
    train(out="whole", iterations=60)
    train(out="parts", iterations=17, resume="auto")
    train(out="parts", iterations=60, resume="auto")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for kind, key in (("iteration", "loss"), ("epoch", "train_loss"), ("end", "weights_sha256")):
        assert [r[key] for r in records(parts, kind)] == [r[key] for r in records(whole, kind)]


def test_a_run_that_is_done_can_be_resumed_and_is_evaluated(train, tmp_path):
    train(out="run", iterations=20)
    before = records(tmp_path / "run", "end")[0]
    train(resume="run")
    after = records(tmp_path / "run", "end")[0]
    assert (after["iterations"], after["test_accuracy"]) == (20, before["test_accuracy"])


def test_a_checkpoint_goes_on_in_another_folder(train, tmp_path):
    train(out="first", iterations=10)
    train(resume="first/checkpoints/iteration-00000010.h5", out="second", iterations=12)
    assert records(tmp_path / "first", "end")[0]["iterations"] == 10
    assert [record["iteration"] for record in records(tmp_path / "second", "iteration")] == [11, 12]
    assert (tmp_path / "second" / "checkpoints" / "best.h5").exists()


def test_a_damaged_newest_checkpoint_is_passed_over(train, tmp_path):
    train(out="run", iterations=20, checkpoint_every=10)
    newest = tmp_path / "run" / "checkpoints" / "iteration-00000020.h5"
    newest.write_bytes(newest.read_bytes()[:-100])
    (tmp_path / "run" / "checkpoints" / "best.h5").unlink()
    train(out="run", resume="auto", iterations=22)
    folder = tmp_path / "run"
    assert [record["iteration"] for record in records(folder, "iteration")] == list(range(1, 23))
    assert "passed over" in records(folder, "note")[0]["text"]


def test_auto_starts_anew_where_there_is_nothing(train, tmp_path):
    train(out="run", resume="auto", iterations=2)
    assert records(tmp_path / "run", "end")[0]["iterations"] == 2


def test_a_signal_is_a_checkpoint_and_code_75(train, tmp_path, monkeypatch):
    told = iter([False] * 6)
    monkeypatch.setattr(StopFlag, "__call__", lambda self: next(told, True))
    with pytest.raises(Interrupted, match=r"after iteration 7;.*--resume auto") as error:
        train(out="run", iterations=40)
    assert error.value.exit_code == 75
    (end,) = records(tmp_path / "run", "end")
    assert (end["iterations"], end["reason"]) == (7, "interrupted")
    assert store.load(tmp_path / "run" / "checkpoints" / "iteration-00000007.h5").examples_seen == 210


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ({"model": "lennet"}, ModelError, "did you mean 'lenet'?"),
        ({"model": "lenet", "data": None}, ConfigError, "has no data set of its own: give --data"),
        ({"data": "none.h5"}, DataError, "there is no data set none.h5"),
        ({"model": "lenet"}, DataError, "images of 8x8x1, but model 'lenet' takes 28x28x1"),
        ({"batch": 1438}, ConfigError, "--batch 1438 is more than the 1437 training examples"),
        ({"algorithm": "rng"}, ConfigError, "did you mean 'ring'?"),
        ({"ops": "cpuu"}, ConfigError, "did you mean 'cpu'?"),
        ({"lr_policy": "multistep"}, ConfigError, "wants lr_steps"),
        ({"resume": "auto", "out": None}, ConfigError, "name it with --out"),
        ({"resume": "nowhere"}, CheckpointError, "nowhere is not there"),
        ({"out": "net.toml"}, UsageError, "is a file"),
        ({"run_file": "none.toml"}, ConfigError, "run file none.toml cannot be read"),
    ],
)
def test_refusals(train, flags, kind, message):
    with pytest.raises(kind) as error:
        train(**{"iterations": 2, **flags})
    assert message in str(error.value)
    assert error.value.exit_code == 2 and error.value.everywhere


def test_a_folder_that_holds_a_run_is_not_overwritten(train):
    train(out="run", iterations=2)
    with pytest.raises(UsageError, match=r"holds a run already.*--resume auto"):
        train(out="run", iterations=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch": 31}, "the run that is resumed has batch = 30, not 31"),
        ({"seed": 5}, "the run that is resumed has seed = 0, not 5"),
        ({"model": "digits"}, "the run that is resumed has model = 'net.toml', not 'digits'"),
        ({"optimizer": "adamw"}, "has optimizer = 'sgd', not 'adamw'"),
    ],
)
def test_a_resumed_run_keeps_what_its_order_hangs_on(train, flags, message):
    train(out="run", iterations=2)
    with pytest.raises(ConfigError) as error:
        train(out="run", resume="auto", iterations=4, **flags)
    assert message in str(error.value)


def test_a_resumed_run_on_other_data(train, tmp_path):
    with h5py.File(tmp_path / "digits.h5", "w") as other:
        write_digits(other)
    train(out="run", iterations=2)
    with pytest.raises(CheckpointError, match="the checkpoint was trained on other data"):
        train(out="run", resume="auto", iterations=4, data="digits.h5")


def write_digits(file, labels=None):
    """A data set of 40 random digits, as `data make` would write it."""
    from ringtrain.data.content import Part, checksum

    rng = np.random.default_rng(0)
    images = rng.integers(0, 16, (40, 8, 8, 1), np.uint8)
    labels = np.arange(40, dtype=np.int32) % 10 if labels is None else labels
    file.attrs.update({"format": "ringtrain-dataset", "version": 1, "name": "other", "source": "", "licence": ""})
    file.attrs.update({"classes": [str(k) for k in range(10)], "mean": np.full(1, 8.0), "std": np.full(1, 4.0)})
    file["mean_image"] = np.full((8, 8, 1), 8, np.float32)
    part = file.create_group("train")
    part["images"], part["labels"] = images, labels
    part.attrs["checksum"] = checksum(Part(images, labels))


def test_labels_out_of_range(train, tmp_path):
    with h5py.File(tmp_path / "wrong.h5", "w") as file:
        write_digits(file, np.full(40, 10, np.int32))
    with pytest.raises(DataError, match="40 of 40 train labels are out of range"):
        train(data="wrong.h5", iterations=2)


def test_examples_without_a_label_count_nowhere(train, tmp_path):
    labels = np.arange(40, dtype=np.int32) % 10
    labels[:30] = -1
    with h5py.File(tmp_path / "some.h5", "w") as file:
        write_digits(file, labels)
    train(out="run", data="some.h5", batch=8, iterations=10)  # some batches have no label at all
    found = records(tmp_path / "run", "iteration")
    assert all(np.isfinite(record["loss"]) and record["examples"] == 8 for record in found)


def test_divergence_names_iteration_and_layer_and_keeps_the_checkpoint(train, tmp_path):
    train(out="run", iterations=2)
    with pytest.raises(
        DivergedError, match=r"at iteration \d+: the first layer with a non-finite value is '\w+'"
    ) as error:
        train(out="run", resume="auto", iterations=9, lr=1e30)
    assert error.value.exit_code == 3
    assert store.load(tmp_path / "run" / "checkpoints" / "iteration-00000002.h5").iteration == 2


def test_loading_what_fits_nothing(train, alone):
    train(out="run", iterations=2)
    with pytest.raises(DataError, match="there is no data set"):
        load(alone, "run", False, {"data": "missing.h5"}, "test")
    with pytest.raises(CheckpointError, match="is not there"):
        load(alone, "nowhere", False, {}, "test")
