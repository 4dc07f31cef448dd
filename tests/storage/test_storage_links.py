"""A run writes, prunes and removes in its own folder alone: whatever is a link there, its target stays as it is."""

import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.report import plots
from ringtrain.report.events import Note
from ringtrain.report.sinks import JsonLines, is_log, kinds_at, truncate_log
from ringtrain.report.trace import write_trace
from ringtrain.show import figures
from ringtrain.storage import files
from ringtrain.storage.run_folder import outcome
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder, find_checkpoint
from tests.says import says

TEXT = b'{"event": "note", "text": "mine"}\n'


def snapshot(top):
    """Every file and link below a folder, with its content."""
    state = {}
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else None
            state[path] = (stat.S_IFMT(status.st_mode), status.st_ino, content)
    return state


@pytest.fixture(scope="module")
def saved(tmp_path_factory, make):
    """The bytes of a checkpoint of iteration 1."""
    folder = RunFolder(tmp_path_factory.mktemp("saved"))
    folder.checkpoint_folder.make()
    return folder.save(make(1), keep=1, is_best=False).read_bytes()


@pytest.fixture
def victim(tmp_path, saved):
    """The folder of another run, and files of the user beside it."""
    other = RunFolder(tmp_path / "mine" / "run")
    other.checkpoint_folder.make()
    for path in (*map(other.numbered, (1, 3, 4, 90)), other.best, other.checkpoints / f"x.h5.1{files.PARTIAL}"):
        path.write_bytes(saved)
    for name in ("config.toml", "log.jsonl", "file"):
        (other.path / name).write_bytes(TEXT)
    return other


@pytest.fixture
def folder(tmp_path, saved):
    run = RunFolder(tmp_path / "run")
    run.checkpoint_folder.make()
    for path in (run.numbered(1), run.best):
        path.write_bytes(saved)
    for path in (run.config, run.log):
        path.write_bytes(TEXT)
    yield run
    run.release()


def log_a_note(folder, make):
    log = JsonLines(folder.log, 1)
    log.handle(Note(text="x"))
    log.close()


DEEDS = (  # every way in which a run writes in its folder
    lambda folder, make: folder.root.write(folder.config, b"seed = 1\n"),
    lambda folder, make: outcome.write_outcome(folder.path, outcome.RunOutcome("running", None, 0, 9, 1)),
    log_a_note,
    lambda folder, make: truncate_log(folder.log, 1),
    lambda folder, make: write_trace(folder.path / "trace.json", {}),
    lambda folder, make: plots.draw_curves(folder.path, folder.curves),
    lambda folder, make: folder.save(make(3), keep=1, is_best=True),
    lambda folder, make: folder.save(make(4), keep=1, is_best=False),
    lambda folder, make: folder.supersede(3),
)


@pytest.fixture(autouse=True)
def drawn_at_once(monkeypatch):
    monkeypatch.setattr(figures, "drawn", lambda make, kind: b"a picture")
    monkeypatch.setattr(plots, "read_run", lambda folder, name: SimpleNamespace(train=[1]))


PARTS = [f"{name}.{os.getpid()}{files.PARTIAL}" for name in ("config.toml", "checkpoints/best.h5")]
NAMES = [
    "config.toml", "log.jsonl", "outcome.json", "curves.png", "trace.json", "trace.json.part", ".lock",
    "checkpoints/best.h5", "checkpoints/iteration-00000003.h5", "checkpoints/superseded-iteration-00000004.h5", *PARTS,
]  # fmt: skip
TARGETS = {
    "a file": lambda other: other.path / "file",
    "a checkpoint": lambda other: other.numbered(90),
    "a folder": lambda other: other.checkpoints,
    "nothing": lambda other: other.path / "new",
}


@pytest.mark.parametrize("claimed", [False, True], ids=["before", "in mid-run"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.replace(f".{os.getpid()}", ""))
def test_the_target_of_a_link_stays_as_it_is(folder, victim, make, name, target, claimed):
    before = snapshot(victim.path.parent)
    if claimed:
        folder.claim(resume=True)
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(TARGETS[target](victim))
    if not claimed:
        folder.claim(resume=True)
    for deed in DEEDS:
        with suppress(RingtrainError, OSError):  # a defect of one does not keep the others from their turn
            deed(folder, make)
    assert snapshot(victim.path.parent) == before
    for written in ("config.toml", "outcome.json", "curves.png", "checkpoints/best.h5"):
        assert stat.S_ISREG(os.lstat(folder.path / written).st_mode)


# ── the folder of the checkpoints ─────────────────────────────────────────────────────────────────────────────────────
ACTS = {
    "a new run": lambda folder, make: create_run_folder(str(folder.path), "m", None, resume=False),
    "a resumed run": lambda folder, make: create_run_folder(str(folder.path), "m", None, resume=True),
    "the lock": lambda folder, make: folder.claim(resume=True),
    "a checkpoint": lambda folder, make: folder.save(make(5), keep=1, is_best=False),
    "the best one": lambda folder, make: folder.save(make(5), keep=1, is_best=True),
    "later ones": lambda folder, make: folder.supersede(1),
    "the newest": lambda folder, make: folder.latest(),
    "a search": lambda folder, make: find_checkpoint(folder.path, best=True),
}
LINKS = {
    "a link": lambda folder, victim: folder.checkpoints.symlink_to(victim.checkpoints),
    "a relative link": lambda folder, victim: folder.checkpoints.symlink_to("../mine/run/checkpoints"),
    "a link to a link": lambda folder, victim: (
        (folder.path / "between").symlink_to(victim.checkpoints),
        folder.checkpoints.symlink_to("between"),
    ),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("link", LINKS)
def test_a_linked_folder_of_checkpoints_is_refused_before_anything_is_touched(folder, victim, make, link, act):
    folder.checkpoints.rename(folder.path / "away")
    LINKS[link](folder, victim)
    before, own_files = snapshot(victim.path.parent), snapshot(folder.path)
    target = os.readlink(folder.checkpoints)
    with pytest.raises(UsageError) as end:
        ACTS[act](folder, make)
    assert str(end.value) == says(folder.checkpoints, target, folder.path)
    assert snapshot(victim.path.parent) == before
    assert {path: state for path, state in snapshot(folder.path).items() if not path.endswith(".lock")} == own_files


def test_the_way_to_a_run_folder_may_have_links(folder, tmp_path, make):
    (tmp_path / "link").symlink_to("run")
    by_link = create_run_folder(str(tmp_path / "link"), "m", None, resume=True)
    by_link.claim(resume=True)
    by_link.save(make(2), keep=2, is_best=True)
    assert folder.latest().checkpoint.iteration == find_checkpoint(tmp_path / "link").checkpoint.iteration == 2
    assert find_checkpoint(tmp_path / "link" / "checkpoints", best=True).checkpoint.iteration == 2
    by_link.release()


@pytest.mark.parametrize("read", [is_log, partial(kinds_at, iteration=1)])
def test_a_linked_log_is_not_read(folder, victim, read):
    folder.log.unlink()
    folder.log.symlink_to(victim.log)
    with pytest.raises(OSError, match=says("link", "followed")):
        read(folder.log)
    assert not plots.has_iterations(folder.log)


def test_other_folders_that_are_written_follow_no_link_and_a_linked_lock_is_renamed(folder, victim):
    before = snapshot(victim.path.parent)
    (folder.path / "compare.png").symlink_to(victim.config)
    figures.write_picture(lambda: None, folder.path / "compare.png", files.Folder(folder.path))
    assert (folder.path / "compare.png").read_bytes() == b"a picture" and snapshot(victim.path.parent) == before
    (folder.path / ".lock").symlink_to(victim.path / "file")
    RunFolder(folder.path).check_idle()
    assert snapshot(victim.path.parent) == before and (folder.path / "superseded-.lock").is_symlink()
