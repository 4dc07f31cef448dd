"""Runs on disks that fail, and in folders that others have been in."""

import json
import os
import re
import resource
import shutil
import tomllib

import pytest
from small_runs import DIGITS, DROPOUT_NET, everywhere

from ringtrain.cli.world import tell_skipped
from ringtrain.errors import ConfigError, RingtrainError, UsageError
from ringtrain.storage import files
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.evaluate import Evaluator, Score
from ringtrain.train.load import load
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.loopback import Loopback
from tests.runs import start
from tests.says import says


@pytest.fixture
def train(train, folder):
    """As elsewhere; returns the run's folder."""

    def run(run_file=None, out="run", **flags):
        train(run_file, **{"out": out, "resume": "auto", **flags})
        return RunFolder(folder / out)

    return run


def records(folder, kind):
    lines = (folder.path / "log.jsonl").read_bytes().splitlines()
    events = [json.loads(line) for line in lines if line.startswith(b'{"event": "')]
    return [record for record in events if record["event"] == kind]


def notes(folder):
    return " ".join(record["text"] for record in records(folder, "note"))


def weights(folder):
    return records(folder, "end")[-1]["weights_sha256"]


def full(monkeypatch, when):
    """No room for checkpoints of these iterations; how many of them were tried is in the list that is returned."""
    real, tried = store.save_checkpoint, []

    def save(path, checkpoint, folder):
        if checkpoint.iteration in when:
            tried.append(checkpoint.iteration)
            raise files.unwritable(OSError(28, "No space left on device"), path, 1234)
        real(path, checkpoint, folder)

    monkeypatch.setattr(store, "save_checkpoint", save)
    return tried


# ── disks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_disk_that_is_full_for_a_while_does_not_end_a_run(train, monkeypatch, capsys):
    tried = full(monkeypatch, {4, 6, 10})
    folder = train(iterations=12, checkpoint_every=2, evaluate_every=100)
    assert tried == [4, 6, 10]
    assert [record["iteration"] for record in records(folder, "checkpoint")] == [2, 8, 12]
    note = says("6", "1 checkpoint")
    assert note.matches([notes(folder)]) and note.matches(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("full_at", "iterations", "tried", "left"),
    [([4, 6, 8, 10], 12, [4, 6, 8], 2), ([6], 6, [6], 4)],
    ids=["three in a row", "the last one"],
)
def test_a_disk_that_stays_full_ends_it_and_it_goes_on_when_there_is_room(
    train, monkeypatch, tmp_path, full_at, iterations, tried, left
):
    when = {*full_at}
    refused = full(monkeypatch, when)
    with pytest.raises(RingtrainError, match=r"no room for 1,234 bytes .*make room, then .*--resume auto") as end:
        train(iterations=iterations, checkpoint_every=2, evaluate_every=100)
    assert refused == tried and end.value.exit_code == 1
    assert RunFolder(tmp_path / "run").latest().checkpoint.iteration == left
    when.clear()
    folder = train(iterations=iterations)
    assert [record["iteration"] for record in records(folder, "iteration")] == list(range(1, iterations + 1))
    assert records(folder, "start")[-1]["resumed_at"] == left and folder.latest().checkpoint.iteration == iterations


@pytest.mark.parametrize("linking", [False, True])
def test_what_the_disk_refused_is_not_the_best(train, monkeypatch, tmp_path, linking):
    """Of two ranks, of which one has the disk; or the best one is written, but gets no second name."""
    real, accuracies = files.Folder.link, {}

    def score(evaluator, *_):
        answers = accuracies.setdefault(evaluator, iter([0.3, 0.9, 0.5, 0.4]))  # of each rank's own
        return Score(1.0, next(answers), 10)

    def link(folder, old, new):
        if new.name.endswith("4.h5"):
            raise files.unwritable(OSError(28, "No space left on device"), new, 1234)
        real(folder, old, new)

    if linking:
        monkeypatch.setattr(files.Folder, "link", link)
    else:
        full(monkeypatch, {4})

    monkeypatch.setattr(Evaluator, "score", score)
    flags = {**DIGITS, "out": "run", "iterations": 8, "evaluate_every": 2, "checkpoint_every": 100}
    everywhere(2, lambda transport: start(transport, None, flags, StopFlag()))
    best = store.load_checkpoint(RunFolder(tmp_path / "run").best)
    assert (best.iteration, best.best) == ((4, 0.9) if linking else (6, 0.5))


def test_a_folder_that_may_not_be_written_in_the_middle_of_a_run_is_a_failure(train, monkeypatch):
    def refuse(path, checkpoint, folder):
        raise files.unwritable(OSError(30, "Read-only file system"), path, 1)

    monkeypatch.setattr(store, "save_checkpoint", refuse)
    with pytest.raises(RingtrainError, match="Read-only file system") as end:
        train(iterations=2)
    assert end.value.exit_code == 1


def test_no_room_for_anything(train, drawn, tmp_path, capsys):
    """Files can hold 3000 bytes: the log ends, no checkpoint and no picture; and all is told."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(RingtrainError, match=r"no room for [\d,]+ bytes \(File too large\)"):
            train(iterations=60, checkpoint_every=100, evaluate_every=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    output = capsys.readouterr().out
    assert "log.jsonl: could not be written" in output and "could not be written: no room" in output
    assert says("note", "curves").matches(output) and not (tmp_path / "run" / "curves.png").exists()
    assert (tmp_path / "run" / "log.jsonl").read_bytes().endswith(b"}\n")
    train(iterations=3)
    assert len(records(RunFolder(tmp_path / "run"), "iteration")) == 3


def test_a_trace_that_cannot_be_written_is_told(train, tmp_path, monkeypatch):
    folder = train(iterations=9, trace="t.json")
    assert re.search(says("https", "perfetto"), notes(folder))
    (tmp_path / "t").mkdir()
    real = os.replace

    def replace(old, new, **handles):
        if str(new).endswith("u.json") and len(list((tmp_path / "t").iterdir())) == 2:
            raise OSError(28, "No space left on device")
        real(old, new, **handles)

    monkeypatch.setattr(os, "replace", replace)
    folder = train(out="other", iterations=9, trace="t/u.json")
    assert says("t/u.json", "No space left on device").matches(notes(folder))
    assert os.listdir(tmp_path / "t") == ["u.json"] and weights(folder)


# ── what has become of a folder ───────────────────────────────────────────────────────────────────────────────────────
DAMAGED = {
    "a flipped bit in config.toml": ("config.toml", lambda p: p.write_bytes(p.read_bytes().replace(b"=", b"\xbd", 1))),
    "no config.toml": ("config.toml", os.unlink),
    "a folder for config.toml": ("config.toml", lambda p: [p.unlink(), p.mkdir()]),
    "no log": ("log.jsonl", os.unlink),
    "an empty log": ("log.jsonl", lambda p: p.write_bytes(b"")),
    "half a log": ("log.jsonl", lambda p: os.truncate(p, p.stat().st_size // 2)),
    "zeros in the log": ("log.jsonl", lambda p: p.write_bytes(b"\0" * 5000)),
    "somebody's log": ("log.jsonl", lambda p: p.write_text("somebody's\n")),
    "a pipe for the log": ("log.jsonl", lambda p: [p.unlink(), os.mkfifo(p)]),
    "a cut newest": ("checkpoints/iteration-00000006.h5", lambda p: os.truncate(p, 5000)),
    "an empty newest": ("checkpoints/iteration-00000006.h5", lambda p: p.write_bytes(b"")),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder, and the weights that it comes to when it goes on by an iteration."""
    path = tmp_path_factory.mktemp("finished")
    (path / "net.toml").write_text(DROPOUT_NET)
    flags = {**DIGITS, "model": str(path / "net.toml"), "evaluate_every": 3, "checkpoint_every": 3}
    for out, iterations in (("run", 6), ("whole", 7)):
        start(Loopback(), None, {**flags, "out": str(path / out), "iterations": iterations})
    return path / "run", weights(RunFolder(path / "whole"))


@pytest.mark.parametrize("what", DAMAGED)
def test_it_goes_on_to_the_very_weights_of_an_undamaged_run(train, finished, tmp_path, what):
    run, wanted = finished
    folder = RunFolder(shutil.copytree(run, tmp_path / "run"))
    name, damage = DAMAGED[what]
    damage(folder.path / name)
    train(iterations=7)
    assert weights(folder) == wanted
    if "newest" in what:
        assert says("passed over", "checkpoint").matches(notes(folder))
        assert says("aside", "later").matches(notes(folder))
        assert [each["iteration"] for each in records(folder, "iteration")] == [*range(1, 8)]
    elif what == "somebody's log":
        assert "log.jsonl is no log of a run" in notes(folder)
        assert (folder.path / "superseded-log.jsonl").read_text() == "somebody's\n"
    elif "pipe" in what or "folder" in what:
        assert says(f"superseded-{name}").matches(notes(folder))


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("text", [b"\xff\xfe", b"[[[[", b"batch = 'many'", b"name = 'of something else'"])
def test_a_config_of_something_else_is_put_aside(train, finished, tmp_path, text, checkpoints):
    """Without checkpoints a run uses its own flags alone; with some it goes on."""
    run, wanted = finished
    if checkpoints:
        shutil.copytree(run, tmp_path / "run")
    else:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "log.jsonl").write_text("somebody's\n")
    (tmp_path / "run" / "config.toml").write_bytes(text)
    folder = train(iterations=7)
    said = notes(folder)
    assert "is not what a run writes" in said and says("superseded-config.toml").matches(said)
    assert says("uses", "flags").matches(said) != checkpoints
    assert (tmp_path / "run" / "superseded-config.toml").read_bytes() == text
    assert tomllib.loads(folder.config.read_text())["iterations"] == 7
    if checkpoints:
        assert weights(folder) == wanted
    else:
        assert "log.jsonl is no log of a run" in said
        assert (tmp_path / "run" / "superseded-log.jsonl").read_text() == "somebody's\n"


def test_a_second_run_in_a_folder_is_refused(train, tmp_path):
    folder = train(iterations=2)
    folder.claim(resume=True)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock"}
    for flags in ({}, {"resume": "run"}, {"resume": "run/checkpoints"}):
        with pytest.raises(UsageError, match=r"run folder run is in use by process \d+ on .*since .*name another"):
            train(**flags)
    assert all(path.read_bytes() == content for path, content in before.items())
    folder.release()
    train(iterations=3)


def test_a_sealed_checkpoint_of_no_run_is_refused(train, tmp_path):
    folder = train(iterations=2)
    stored = store.load_checkpoint(folder.best)
    fields = {name: getattr(stored, name) for name in store.Checkpoint.__slots__}
    for changed, message in (
        ({"scalars": {}}, says("step")),
        ({"optimizer": {"momentum": {}}}, says("'momentum'")),
        ({"iteration": 1}, says("1", "60")),
        ({"config": "x = " + "[" * 20}, says("valid", "TOML")),
        ({"model": "input = 3"}, "input is 3"),
    ):
        store.save_checkpoint(tmp_path / "x.h5", store.Checkpoint(**fields | changed))
        with pytest.raises(UsageError, match=message) as refusal:
            train(resume="x.h5", out="elsewhere")
        assert refusal.value.exit_code == 2 and not os.path.exists("elsewhere")


def test_evaluate_says_which_checkpoints_it_passed_over(train, capsys):
    folder = train(iterations=6, checkpoint_every=3)
    os.truncate(folder.numbered(6), 100)
    folder.best.unlink(missing_ok=True)
    trained = load(Loopback(), str(folder.path), False, {}, "test")
    assert trained.iteration == 3
    tell_skipped(trained.skipped)
    output = capsys.readouterr().err
    assert "ringtrain: passed over: checkpoint" in output and "00000006.h5 is damaged" in output


# ── what a file may name ──────────────────────────────────────────────────────────────────────────────────────────────
def test_a_trace_is_written_into_the_run_folder_alone(train, tmp_path):
    """As a run file names it, which may be another user's; and it does not follow a link."""
    for trace in ("/tmp/x.json", "../x.json", "a/b.json", "log.jsonl", "./log.jsonl", "checkpoints", ".", ""):
        (tmp_path / "run.toml").write_text(f"trace = '{trace}'\n")
        with pytest.raises(ConfigError, match=says("--trace", "run.toml", f"{trace!r}")):
            train("run.toml", iterations=2)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").write_text("mine")
    folder = train(iterations=1)
    (folder.path / "t.json.part").symlink_to(tmp_path / "mine")
    (folder.path / "t.json").symlink_to(tmp_path / "mine")
    train(iterations=8, trace="t.json")
    assert (tmp_path / "mine").read_text() == "mine" and "traceEvents" in (folder.path / "t.json").read_text()
