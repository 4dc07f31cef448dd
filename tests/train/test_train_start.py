"""`ringtrain train` from flags to files, in this process: what it leaves, how it goes on, and what it refuses."""

import platform
import re
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import h5py
import numpy as np
import pytest
from small_runs import DIGITS, DROPOUT_NET, LAYERWISE, LOWER_THE_RATE, everywhere

from ringtrain.collectives.catalogue import HALVES
from ringtrain.config.resolve import parse_run_file
from ringtrain.data.content import memory_part, no_progress
from ringtrain.data.file.contents import read_part
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.data.stored.base import MemoryArray
from ringtrain.errors import CheckpointError, ConfigError, DataError, DivergedError, Interrupted, ModelError, UsageError
from ringtrain.launch.slurm.job_end import NUMBERS
from ringtrain.ops.base import Ops
from ringtrain.report.records import parse_record
from ringtrain.storage.checkpoint import store
from ringtrain.train.load import load, score_of
from ringtrain.train.predict import of_data, write_predictions
from ringtrain.train.run import memory_trial
from ringtrain.train.start import start as begin
from ringtrain.train.start.header import command_of, provenance, versions_of
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.loopback import Loopback
from tests.config.test_config import GONE_KEYS
from tests.runs import records, start
from tests.says import says


# ── what a run leaves ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_records_of_a_run(train, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/bin/ringtrain", "train", "--out", "my run"])
    monkeypatch.setenv("PBS_JOBID", "71.server")
    began = datetime.now(UTC).replace(microsecond=0)
    train(out="run", iterations=50, checkpoint_every=20, evaluate_every=25, keep=2)
    folder = tmp_path / "run"
    kinds = [record["event"] for record in records(folder)]
    assert kinds[0] == "start" and kinds[-1] == "end"
    assert kinds.count("iteration") == 50 and kinds.count("epoch") == 1 and kinds.count("evaluation") == 2
    (begun,), (end,) = records(folder, "start"), records(folder, "end")
    assert began <= datetime.fromisoformat(begun["date"]) <= datetime.now(UTC)
    assert begun["hosts"] == [socket.gethostname()] and begun["job"] == "71.server"
    assert begun["command"] == "ringtrain train --out 'my run'"
    assert begun["versions"]["numpy"] == np.__version__ and begun["versions"]["python"] == platform.python_version()
    assert begun["mpi"] == says("process", "MPI")
    line = (folder / "log.jsonl").read_bytes().splitlines(keepends=True)[0]
    assert parse_record(line) == begun
    assert parse_record(line.replace(b'"python": "', b'"python": 3, "": "')) is None
    assert {"iterations", "ranks", "test_accuracy", "images_per_s", "weights_sha256"} <= end.keys()
    assert 0.3 < end["test_accuracy"] <= 1
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.h5", "iteration-00000040.h5", "iteration-00000050.h5"]
    assert (folder / "curves.png").stat().st_size > 5000


def test_scalars_for_tensorboard_go_on_where_the_run_does(train, tmp_path):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: scripts/check-full installs it",
    )
    train(out="run", iterations=4, evaluate_every=2, checkpoint_every=3, tensorboard=True)
    (tmp_path / "run" / "checkpoints" / "iteration-00000004.h5").unlink()
    train(resume="run", iterations=5)
    events = accumulators.EventAccumulator(str(tmp_path / "run")).Reload()
    logged = {record["iteration"]: record for record in records(tmp_path / "run", "iteration")}
    for name in ("loss", "accuracy", "lr", "images_per_s", "exposed_s"):
        scalars = [(each.step, each.value) for each in events.Scalars(f"train/{name}")]
        assert scalars == [(step, pytest.approx(logged[step][name])) for step in range(1, 6)]
    assert [each.step for each in events.Scalars("test/loss")] == [2, 4, 5]


def test_without_tensorboard_no_run_begins_that_asks_for_it(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(UsageError, match=says("--tensorboard")):
        train(out="run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_there_need_be_no_job(monkeypatch):
    for name in NUMBERS:
        monkeypatch.delenv(name, raising=False)
    assert provenance(Loopback())["job"] is None
    assert command_of(["/x/ringtrain/__main__.py", "train"]) == "ringtrain train"
    assert versions_of(["numpy", "no-such-package-here"]) == {"numpy": np.__version__}


def test_what_ranks_find_out_of_how_they_compute_is_noted_once(train, tmp_path, monkeypatch):
    words = says("cuDNN", 1, "No valid engine configs")
    tried = []

    def notes(self):
        return [words] if tried else []

    rehearsal = memory_trial.rehearse
    monkeypatch.setattr(Ops, "notes", notes)
    monkeypatch.setattr(begin, "rehearse", lambda *args: (rehearsal(*args), tried.append(True)))
    everywhere(2, lambda t: start(t, None, {**DIGITS, "iterations": 1, "out": "run"}, StopFlag()))
    assert [note["text"] for note in records(tmp_path / "run", "note")].count(words) == 1


def test_flags_win_over_the_run_file_which_wins_over_the_recipe(train, tmp_path):
    (tmp_path / "run.toml").write_text("batch = 40\nlr = 0.5\niterations = 2\n")
    train("run.toml", out="run", lr=0.25)
    stored = parse_run_file((tmp_path / "run" / "config.toml").read_text(), "config")
    assert (stored["batch"], stored["lr"], stored["momentum"], stored["iterations"]) == (40, 0.25, 0.9, 2)
    (tmp_path / "net.toml").write_text(DROPOUT_NET + 'out = "elsewhere"\n')
    with pytest.raises(ConfigError, match=says("recipe of model net", "'out'")):
        train(iterations=2)


def test_synthetic_data_is_one_batch(train, tmp_path):
    train(out="run", synthetic=True, iterations=30, batch=20, lr=0.1, data=None)
    losses = [record["loss"] for record in records(tmp_path / "run", "iteration")]
    assert losses[-1] < 0.7 * losses[0]  # it learns it by heart
    assert records(tmp_path / "run", "end")[0]["test_accuracy"] is None


# ── going on ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "sgd, momentum 0.9, weight decay 0.001"),
        (LAYERWISE["lars"], "lars, momentum 0.9, weight decay 0.001, trust 0.05"),
        ({"optimizer": "lamb", "lr": 0.02}, "lamb, beta1 0.9, beta2 0.999, weight decay 0.001"),
        ({"optimizer": "muon", "lr": 0.02, "momentum": 0.95}, "muon, momentum 0.95, weight decay 0.001"),
    ],
)
def test_optimizers_learn_and_resume_exactly(train, tmp_path, flags, words):
    train(out="whole", iterations=60, **flags)
    train(out="parts", iterations=17, resume="auto", **flags)
    train(out="parts", iterations=60, resume="auto")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for kind, key in (("iteration", "loss"), ("epoch", "train_loss")):
        assert [r[key] for r in records(parts, kind)] == [r[key] for r in records(whole, kind)]
    (begun,), (end,) = records(whole, "start"), records(whole, "end")
    assert records(parts, "end")[-1]["weights_sha256"] == end["weights_sha256"]
    assert end["test_accuracy"] > 0.5
    assert begun["optimizer"] == words


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    ("length", "longer", "again"),
    [
        ({"iterations": 20}, "done (20 iterations); --iterations 40", {"out": "run", "resume": "auto"}),
        ({"epochs": 1}, "done (48 iterations); --epochs 2", {"resume": "run"}),
    ],
)
def test_a_run_that_is_done_is_left_as_it_is(train, drawn, tmp_path, capsys, length, longer, again):
    train(out="run", **length)
    before = contents(tmp_path / "run")
    capsys.readouterr()
    train(**again)
    assert contents(tmp_path / "run") == before
    assert capsys.readouterr().out.splitlines() == [f"this run is {longer} lengthens it", "run folder run"]


def test_a_run_that_is_done_is_lengthened(train, tmp_path):
    """The folder of its checkpoints stands for the run."""
    train(out="run", iterations=3)
    for iterations, again in ((5, {"out": "run", "resume": "auto"}), (6, {"resume": "run/checkpoints"})):
        train(**again, iterations=iterations)
        logged = [record["iteration"] for record in records(tmp_path / "run", "iteration")]
        assert logged == [*range(1, iterations + 1)]


def test_a_run_that_did_not_say_that_it_is_done_is_evaluated(train, tmp_path):
    """Its last checkpoint was written, and it was killed before its end."""
    train(out="run", iterations=20)
    before = records(tmp_path / "run", "end")[0]
    (tmp_path / "run" / "outcome.json").unlink()
    train(resume="run")
    after = records(tmp_path / "run", "end")[-1]
    assert (after["iterations"], after["test_accuracy"]) == (20, before["test_accuracy"])


def test_a_checkpoint_goes_on_in_another_folder(train, tmp_path):
    """Which has a checkpoint of its own, also of a run that is done."""
    train(out="first", iterations=10)
    train(resume="first/checkpoints/iteration-00000010.h5", out="second", iterations=12)
    assert records(tmp_path / "first", "end")[0]["iterations"] == 10
    assert [record["iteration"] for record in records(tmp_path / "second", "iteration")] == [11, 12]
    assert (tmp_path / "second" / "checkpoints" / "best.h5").exists()
    train(resume="first", out="third")
    assert store.load_checkpoint(tmp_path / "third" / "checkpoints" / "iteration-00000010.h5").iteration == 10


def test_a_run_of_an_earlier_version_goes_on_without_the_options_that_are_gone(train, alone, tmp_path):
    train(out="run", iterations=3)
    (newest,) = (tmp_path / "run" / "checkpoints").glob("iteration-*.h5")
    stored = store.load_checkpoint(newest)
    gone = "".join(f'{key} = "a value"\n' for key in GONE_KEYS)
    store.save_checkpoint(newest, replace(stored, config=stored.config + gone))
    train(resume="run", iterations=5)
    assert [record["iteration"] for record in records(tmp_path / "run", "iteration")] == [1, 2, 3, 4, 5]
    assert load(alone, "run", False, {}, "test").iteration == 5


def test_a_run_keeps_its_order_and_one_of_an_earlier_version_one_permutation(train, tmp_path, monkeypatch):
    """Whether its set is large decides where a run begins alone. Checkpoints of earlier versions do not name it."""
    monkeypatch.setattr("ringtrain.train.assembly.data.FULL_BYTES", 1)
    first, second, third = (tmp_path / f"run/checkpoints/iteration-0000000{number}.h5" for number in (2, 4, 6))
    train(out="run", iterations=2)
    train(out="run", resume="auto", iterations=4, shuffle="blocks")
    config = store.load_checkpoint(first).config
    assert 'shuffle = "blocks"\n' in config
    unnamed = replace(store.load_checkpoint(second), config=config.replace('shuffle = "blocks"\n', ""))
    store.save_checkpoint(second, unnamed)
    train(out="run", resume="auto", iterations=6)
    assert 'shuffle = "full"' in store.load_checkpoint(third).config


def test_auto_in_a_folder_that_was_left_before_its_first_checkpoint(train, tmp_path):
    train(out="run", iterations=3, lr=0.125, resume="auto")  # which starts anew where there is nothing
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    train(out="run", resume="auto")
    assert records(tmp_path / "run", "start")[0]["lr"] == 0.125
    assert records(tmp_path / "run", "end")[0]["iterations"] == 3


def test_the_best_is_saved_whenever_it_is_seen(train, tmp_path):
    train(out="run", iterations=45, evaluate_every=10, checkpoint_every=44)
    best = max(record["test_accuracy"] for record in records(tmp_path / "run", "evaluation"))
    assert store.load_checkpoint(tmp_path / "run" / "checkpoints" / "best.h5").best == best


def test_a_signal_is_a_checkpoint_and_code_75(train, tmp_path, monkeypatch):
    answers = iter([False] * 6)
    monkeypatch.setattr(StopFlag, "__call__", lambda self: next(answers, True))
    with pytest.raises(Interrupted, match=r"after iteration 7;.*--resume auto") as error:
        train(out="run", iterations=40)
    assert error.value.exit_code == 75
    (end,) = records(tmp_path / "run", "end")
    assert (end["iterations"], end["reason"]) == (7, "interrupted")
    assert store.load_checkpoint(tmp_path / "run" / "checkpoints" / "iteration-00000007.h5").examples_seen == 210


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────
TOO_LONG = UsageError, "File name too long"
FINDS_NONE = sys.version_info >= (3, 14)  # for such a name Python finds no file, where older ones raise an error


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ({"model": "lennet"}, ModelError, says("'lennet'", "did you mean 'lenet'?")),
        ({"model": "lenet", "data": None}, ConfigError, says("--data", "--synthetic", "'lenet'")),
        ({"data": "none.h5"}, DataError, "there is no data set none.h5"),
        ({"model": "lenet"}, DataError, says("--resize", "'digits'", "8x8x1", "'lenet'", "28x28x1")),
        ({"batch": 1438}, ConfigError, says("--batch", 1438, 1437)),
        (
            {"wire": "bfloat16", "algorithm": "recursive-doubling"},
            UsageError,
            says("'recursive-doubling'", ", ".join(HALVES)),
        ),
        ({"algorithm": "rng"}, UsageError, "did you mean 'ring'?"),
        ({"ops": "cpuu"}, ConfigError, "did you mean 'cpu'?"),
        ({"lr_policy": "multistep"}, ConfigError, says([])),
        (
            {"trust_coefficient": 0.01},
            ConfigError,
            says("--trust-coefficient 0.01", "--optimizer lars", "--optimizer sgd", "used", "uses"),
        ),
        *(({"batch_norm": each}, ConfigError, says("--batch-norm", each, "'net'")) for each in ("sync", "ghost:4")),
        ({"batch_norm": "ghots:8"}, ConfigError, says("'ghots:8'", "did you mean 'ghost:SIZE'? known:")),
        *(
            ({"batch_norm": each}, ConfigError, says(f"{each!r}", "model", "sync"))
            for each in ("ghost:0", "ghost:" + "9" * 5000, "ghost", "sync:4")
        ),
        ({"resume": "auto", "out": None}, ConfigError, says("--resume", "--out")),
        ({"resume": "nowhere"}, CheckpointError, says("nowhere")),
        ({"out": "net.toml"}, UsageError, "is a file"),
        ({"run_file": "none.toml"}, ConfigError, says("none.toml")),
        ({"out": "x" * 300}, *TOO_LONG),
        ({"resume": "x" * 300}, *((CheckpointError, says("x" * 300)) if FINDS_NONE else TOO_LONG)),
        ({"model": "x" * 300}, *((ModelError, says("x" * 300)) if FINDS_NONE else TOO_LONG)),
    ],
)
def test_refusals(train, flags, kind, message):
    with pytest.raises(kind) as error:
        train(**{"iterations": 2, **flags})
    assert says(message).matches(str(error.value))
    assert error.value.exit_code == 2 and error.value.everywhere


def test_a_resumed_run_keeps_what_its_order_hangs_on(train):
    train(out="run", iterations=2)
    for name, before, now in (
        ("batch", 30, 31),
        ("seed", 0, 5),
        ("shuffle", "full", "blocks"),
        ("optimizer", "sgd", "adamw"),
        ("optimizer", "sgd", "lars"),
        ("loss", "ce", "mse"),
        ("best_by", "accuracy", "loss"),
    ):
        with pytest.raises(ConfigError, match=says(name, repr(before), repr(now))):
            train(out="run", resume="auto", iterations=4, **{name: now})
    with pytest.raises(UsageError, match=says("--resume", "--out")):  # a folder that holds a run is not overwritten
        train(out="run", iterations=2)
    with pytest.raises(ConfigError, match=says(2, 1, "--iterations 1")):
        train(out="run", resume="auto", iterations=1)
    train(out="run", resume="auto", iterations=50, best_by="accuracy")
    with pytest.raises(ConfigError, match=says(50, 48, "--epochs 1")):
        train(out="run", resume="auto", epochs=1)


def test_a_resumed_run_keeps_its_data_and_its_network(train, tmp_path):
    write_digits("digits.h5")
    train(out="run", iterations=2)
    with pytest.raises(CheckpointError, match=says("--data", "'digits'")):
        train(out="run", resume="auto", iterations=4, data="digits.h5")
    (tmp_path / "net.toml").write_text(DROPOUT_NET.replace("channels = 6", "channels = 7"))
    with pytest.raises(CheckpointError, match=says("--model", "'net.toml'")):
        train(out="run", resume="auto", iterations=4)
    (tmp_path / "net.toml").write_text("# of the same layers\n" + DROPOUT_NET)
    train(out="run", resume="auto", iterations=4)


def write_digits(name, labels=None, test=False, classes=10):
    """Write a data set of 40 random digits, whatever its labels; ``test``: whether there is a test part, too."""
    images = np.random.default_rng(0).integers(0, 16, (40, 8, 8, 1), np.uint8)
    labels = np.arange(40, dtype=np.int32) % 10 if labels is None else labels
    statistics = pixel_statistics(MemoryArray(images))
    with h5py.File(name, "w") as file:
        file.attrs.update({"format": "ringtrain-dataset", "version": 1, "name": "other", "source": ""})
        file.attrs.update(classes=[*map(str, range(classes))], mean=statistics.mean, std=statistics.std)
        file["mean_image"] = statistics.mean_image
        for part in ("train", "test") if test else ("train",):
            file[f"{part}/images"], file[f"{part}/labels"] = images, labels
            file[part].attrs["checksum"] = read_part(memory_part(images, labels), no_progress)


def test_a_resumed_run_on_another_mean_image(train, tmp_path, monkeypatch):
    """Of a set too large to be verified when it is opened, whose file has no checksum of its statistics."""
    monkeypatch.setattr("ringtrain.data.file.contents.VERIFY_BYTES", 0)
    (tmp_path / "net.toml").write_text(
        'summary = "s"\ninput = { shape = [8, 8, 1], mean = "image" }\n'
        'layers = [{ name = "flat", kind = "Flatten" }, { name = "fc", kind = "Linear", units = 10 }]\n'
    )
    write_digits("other.h5")
    flags = {"out": "run", "batch": 20, "data": "other.h5"}
    train(iterations=2, **flags)
    train(resume="auto", iterations=3, **flags)
    with h5py.File("other.h5", "r+") as file:
        file["mean_image"][0, 0, 0] += 64
    message = says("--data", "'other'", "its class names, mean, std and mean_image have the")
    with pytest.raises(CheckpointError, match=message):
        train(resume="auto", iterations=4, **flags)


def test_labels_out_of_range_are_refused_and_examples_without_one_count_nowhere(train, tmp_path, alone):
    write_digits("wrong.h5", np.full(40, 10, np.int32))
    with pytest.raises(DataError, match="40 of 40 train labels are out of range"):
        train(data="wrong.h5", iterations=2)
    write_digits("some.h5", np.where(np.arange(40) < 30, -1, np.arange(40) % 10).astype(np.int32))
    train(out="run", data="some.h5", batch=8, iterations=10)  # some batches have no label at all
    entries = records(tmp_path / "run", "iteration")
    known = [record for record in entries if record["loss"] is not None]
    assert 0 < len(known) < 10 and all(record["accuracy"] is not None for record in known)
    assert records(tmp_path / "run", "epoch")[0]["train_loss"] > 0
    write_digits("none.h5", np.full(40, -1, np.int32), test=True)
    train(out="none", data="none.h5", iterations=2)
    assert records(tmp_path / "none", "end")[0]["test_accuracy"] is None
    with pytest.raises(DataError, match=says("example", "part")):
        score_of(alone, load(alone, "none", False, {}, "test"))


def test_divergence_names_iteration_and_layer_and_keeps_the_checkpoint(train, tmp_path):
    train(out="run", iterations=2)
    with pytest.raises(DivergedError, match=LOWER_THE_RATE) as error:
        train(out="run", resume="auto", iterations=9, lr=1e30)
    assert re.search(says(0, "non-finite", "value"), str(error.value)) and error.value.exit_code == 3
    assert store.load_checkpoint(tmp_path / "run" / "checkpoints" / "iteration-00000002.h5").iteration == 2


def test_weights_that_an_update_spoilt_are_not_saved(train, tmp_path):
    write_digits("train.h5")  # no test part, whose loss would be the first to tell
    with pytest.raises(DivergedError, match=LOWER_THE_RATE + says("weights", 1, "after", "iteration")):
        train(out="run", data="train.h5", iterations=1, lr=1e38, weight_decay=1e3)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_scores_and_predictions_want_the_classes_of_the_network(train, tmp_path, alone):
    write_digits("twelve.h5", classes=12)
    train(out="run", iterations=2)
    trained = load(alone, "run", False, {"data": "twelve.h5"}, "train")
    predict = partial(write_predictions, alone, trained, of_data(trained))
    for refused in (lambda: score_of(alone, trained), lambda: predict(tmp_path / "p.csv")):
        with pytest.raises(ModelError, match=says("--classes", "12 classes")):
            refused()
    assert predict(tmp_path / "f.h5", "flat").examples == 40
    with h5py.File(tmp_path / "f.h5") as file:
        assert file["features"].shape == (40, 96)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "there.csv").write_text("")
    for out, layer, kind, message in (
        ("folder.csv", "flat", DataError, "is a folder"),
        ("there.csv", "flat", DataError, "exists already"),
        ("p.txt", "flat", DataError, "its ending gives the format: name it .jsonl, .csv or .h5"),
        ("no/p.csv", "flat", DataError, "cannot be written"),
        ("p.csv", "input", ModelError, says("'input'")),
        ("p.csv", "fcc", ModelError, says("'fcc'", "did you mean 'fc'?")),
    ):
        with pytest.raises(kind, match=says(message)) as error:
            predict(tmp_path / out, layer)
        assert error.value.everywhere and not list(tmp_path.glob("*.partial"))
    with pytest.raises(DataError, match="there is no data set"):
        load(alone, "run", False, {"data": "missing.h5"}, "test")
    with pytest.raises(CheckpointError, match=says("does", "exist")):
        load(alone, "nowhere", False, {}, "test")


# ── strategies ────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def ring(train):
    return partial(train, algorithm="ring")


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ({"sync": "sharded"}, "sharded by ring: a rank keeps "),
        ({"overlap": "forward", "clip_norm": 1.0}, "--overlap forward is backward here: the factor of"),
        (
            {"sync": "master", "algorithm": "auto"},
            "rank 0 reads all batches, computes the loss and keeps the optimizer's ",
        ),
    ],
)
def test_a_strategy_says_what_it_does(ring, tmp_path, flags, note):
    ring(out="run", iterations=1, **flags)
    assert records(tmp_path / "run", "note")[0]["text"].startswith(note)


def test_what_each_bucket_costs_is_in_the_log(ring, tmp_path, capsys):
    ring(out="run", iterations=4, overlap="forward", bucket_bytes=1)
    (exchange,) = records(tmp_path / "run", "exchange")
    assert (exchange["overlap"], exchange["iteration"]) == ("forward", 4)
    assert [bucket["spans"] for bucket in exchange["buckets"]] == ["fc.bias", "fc.weight", "conv1.bias", "conv1.weight"]
    assert sum(bucket["nbytes"] for bucket in exchange["buckets"]) == 4 * (96 * 10 + 16 + 64 + 16)
    assert all(bucket["total_s"] >= bucket["exposed_s"] > 0 for bucket in exchange["buckets"])
    assert "communication" not in capsys.readouterr().out  # of one rank
    waits = [entry["exposed_s"] for entry in records(tmp_path / "run", "iteration")]
    assert len(waits) == 4 and min(waits) > 0 and sum(waits) == pytest.approx(exchange["exposed_s"])


def test_a_run_goes_on_with_another_overlap(ring, tmp_path):
    ring(out="whole", iterations=10, checkpoint_every=5, overlap="none")
    ring(out="changed", iterations=5, overlap="forward")
    ring(out="changed", iterations=10, overlap="backward", resume="auto")
    ends = [records(tmp_path / out, "end")[-1] for out in ("whole", "changed")]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


def test_factors_that_compress_nothing_are_refused(ring):
    with pytest.raises(ConfigError, match="--compress-rank 40 compresses nothing"):
        ring(compress="powersgd", compress_rank=40)


@pytest.mark.parametrize(
    ("former", "flags", "words"),
    [
        ({"sync": "server", "staleness": 2, "servers": 1, "algorithm": "auto"}, {"sync": "allreduce"}, ""),
        ({"sync": "averaging", "average_every": 3}, {"sync": "gossip", "gossip_max_lag": 2}, ""),
        ({"sync": "averaging", "asynchronous": True, "algorithm": "auto"}, {"sync": "server", "staleness": 1}, ""),
        ({"sync": "averaging", "average_every": 3}, {"sync": "averaging"}, "every 3"),
    ],
)
def test_a_run_goes_on_by_another_strategy_without_the_options_of_the_former(ring, tmp_path, former, flags, words):
    """By its own strategy it keeps them."""
    ring(out="run", batch=64, iterations=2, **former)
    start(Loopback(), None, {"out": "run", "resume": "auto", "iterations": 3, **flags})
    assert records(tmp_path / "run", "end")[-1]["iterations"] == 3
    assert words in records(tmp_path / "run", "start")[-1]["strategy"]
