import contextlib
import datetime
import os
import re

import pytest

from ringtrain.errors import CheckpointError, RingtrainError, UsageError
from ringtrain.storage.checkpoint import store
from ringtrain.storage.files import PARTIAL
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder, find_checkpoint
from tests.says import says
from tests.storage.conftest import small_files

NOW = datetime.datetime(2026, 1, 31, 23, 59, 58)


@pytest.fixture
def folder(tmp_path):
    return create_run_folder(str(tmp_path / "run"), "mlp", NOW, resume=False)


def names(folder):
    return sorted(os.listdir(folder.checkpoints))


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@contextlib.contextmanager
def as_owner(folder):
    """The folder's own user may write to it for a moment."""
    me = os.geteuid()
    os.seteuid(os.getuid())
    folder.chmod(0o755)
    yield
    folder.chmod(0o555)
    os.seteuid(me)


# Making one.


def test_a_run_is_named_by_model_and_time_and_a_folder_that_exists_is_taken(tmp_path):
    first, second, third = (create_run_folder(None, "my/model 1", NOW, False, runs=tmp_path / "runs") for _ in range(3))
    assert first.path == tmp_path / "runs" / "my_model_1-20260131-235958"
    assert [second.path.name[-2:], third.path.name[-2:]] == ["-2", "-3"]
    assert first.checkpoints.is_dir()
    assert os.listdir(first.path) == ["checkpoints"]
    for name in ("notes.txt", "download.partial"):
        (tmp_path / name).write_text("mine")
    assert create_run_folder(str(tmp_path), "mlp", NOW, resume=False).path == tmp_path
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "download.partial", "notes.txt", "runs"]


@pytest.mark.parametrize("file", ["config.toml", "log.jsonl", "checkpoints/iteration-00000007.h5"])
def test_a_folder_with_a_run_is_refused_unless_it_is_resumed(folder, file):
    (folder.path / file).write_text("")
    message = says("--resume", "--out", folder.path, os.path.basename(file))
    with pytest.raises(UsageError, match=message):
        create_run_folder(str(folder.path), "mlp", NOW, resume=False)
    assert create_run_folder(str(folder.path), "mlp", NOW, resume=True).path == folder.path
    assert (folder.path / file).exists()


@pytest.mark.parametrize(("file", "out"), [("file", "file"), ("file", "file/below/it"), ("checkpoints", ".")])
def test_a_file_in_the_way(tmp_path, file, out):
    (tmp_path / file).write_text("")
    with pytest.raises(UsageError, match=says("--out", tmp_path / file)):
        create_run_folder(str(tmp_path / out), "mlp", NOW, resume=False)


def test_a_folder_that_may_not_be_made_or_written(forbidden_folder, make):
    with pytest.raises(UsageError, match=says("--out", "run")):
        create_run_folder(str(forbidden_folder / "run"), "mlp", NOW, resume=False)
    with as_owner(forbidden_folder):  # so that the checkpoints folder can be put into it
        (forbidden_folder / "checkpoints").mkdir()
    with pytest.raises(UsageError, match=says("--out")):
        create_run_folder(str(forbidden_folder), "mlp", NOW, resume=False)
    run = RunFolder(forbidden_folder)
    with as_owner(forbidden_folder):
        run.save(make(2), keep=1, is_best=False)
        run.checkpoints.chmod(0o555)
    with pytest.raises(UsageError, match=says("--out", "superseded-iteration-00000002.h5")):
        run.supersede(1)


def test_what_killed_writers_left_is_removed(folder):
    for path in (folder.path, folder.checkpoints):
        (path / f"x.123{PARTIAL}").write_text("half")
    (folder.checkpoints / f"folder{PARTIAL}").mkdir()  # not ours
    folder.claim(resume=True)
    assert sorted(os.listdir(folder.path)) == [".lock", "checkpoints"]
    assert names(folder) == [f"folder{PARTIAL}"]


def test_text_is_replaced_whole_or_not_at_all(folder):
    for text in ("seed = 1\n", "name = 'größer'\n"):
        folder.root.write(folder.config, text.encode())
    with small_files(10), pytest.raises(RingtrainError, match=r"config.toml: no room for 4,000 bytes"):
        folder.root.write(folder.config, b"x" * 4000)
    assert folder.config.read_text(encoding="utf-8") == "name = 'größer'\n"
    assert sorted(os.listdir(folder.path)) == ["checkpoints", "config.toml"]


# Saving.


def test_the_newest_are_kept_and_the_best(folder, make, equal):
    for iteration in (1, 2, 3, 10, 100_000_000):
        folder.save(make(iteration), keep=2, is_best=iteration == 2)
    assert names(folder) == ["best.h5", "iteration-00000010.h5", "iteration-100000000.h5"]
    assert equal(store.load_checkpoint(folder.best), make(2))
    assert equal(folder.latest().checkpoint, make(100_000_000))


@pytest.mark.parametrize("links", [True, False])
def test_a_best_one_takes_no_room_twice_where_files_have_two_names(folder, make, equal, monkeypatch, links):
    """A later one leaves numbered ones. A copy serves where a file can have one name."""

    def refuse(old, new, **handles):
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = folder.save(make(1), keep=2, is_best=True)
    assert path == folder.numbered(1) and path.samefile(folder.best) == links
    assert names(folder) == ["best.h5", "iteration-00000001.h5"]
    folder.save(make(2), keep=2, is_best=True)
    assert equal(store.load_checkpoint(path), make(1)) and equal(store.load_checkpoint(folder.best), make(2))


@pytest.mark.parametrize("is_best", [False, True])
def test_a_full_disk_keeps_all_that_was_there(folder, make, equal, is_best):
    path = folder.save(make(1), keep=1, is_best=True)
    words = "--resume", folder.best if is_best else folder.numbered(2), "no", "room", f"{path.stat().st_size:,}"
    with small_files(3000), pytest.raises(RingtrainError, match=says(*words)) as failure:
        folder.save(make(2), keep=1, is_best=is_best)
    assert failure.value.exit_code == 1 and names(folder) == ["best.h5", "iteration-00000001.h5"]
    assert equal(folder.latest().checkpoint, make(1))


# Finding.


def test_damaged_ones_are_passed_over_and_named(folder, make, equal):
    for iteration in (1, 2, 3):
        folder.save(make(iteration), keep=3, is_best=False)
    damage(folder.numbered(3))
    folder.numbered(2).write_bytes(b"")
    latest = folder.latest()
    assert (latest.path, latest.checkpoint.iteration) == (folder.numbered(1), 1)
    assert len(latest.skipped) == 2
    assert re.search(says("--resume", folder.numbered(3), "do", "match"), latest.skipped[0])
    assert re.search(says("--resume", folder.numbered(2), 0, "only", "long"), latest.skipped[1])


def test_the_best_one_is_the_last_resort_and_none_may_be_good(folder, make):
    folder.save(make(1), keep=1, is_best=True)
    damage(folder.save(make(2), keep=1, is_best=False))
    assert folder.latest().path == folder.best
    damage(folder.best)
    with pytest.raises(CheckpointError, match=says(folder.path)):
        folder.latest()


def test_where_there_is_none_the_runs_beside_are_named_and_other_files_are_no_checkpoints(folder, make):
    (folder.path.parent / "other" / "checkpoints").mkdir(parents=True)
    for find in (folder.latest, lambda: find_checkpoint(folder.path.parent / "rum")):
        with pytest.raises(CheckpointError, match=says("other")):
            find()
    for name in ("iteration-7.h5", "iteration-abcdefgh.h5", "iteration-00000009.h5.1.ringtrain-partial"):
        (folder.checkpoints / name).write_text("")
    assert folder.is_empty()
    folder.save(make(0), keep=1, is_best=False)
    assert not folder.is_empty()
    assert folder.latest().checkpoint.iteration == 0


def test_what_a_user_may_name(folder, make, monkeypatch):
    folder.save(make(1), keep=2, is_best=False)
    assert find_checkpoint(folder.path, best=True).checkpoint.iteration == 1  # the newest, without a best one
    folder.save(make(1), keep=2, is_best=True)
    damaged = folder.save(make(3), keep=3, is_best=False)
    folder.save(make(2), keep=3, is_best=False)
    damage(damaged)
    assert find_checkpoint(folder.path, best=True).checkpoint.iteration == 1
    monkeypatch.chdir(folder.checkpoints)
    for target, iteration in ((folder.numbered(1), 1), (str(folder.path), 2), (folder.checkpoints, 2), (".", 2)):
        assert find_checkpoint(target).checkpoint.iteration == iteration
    with pytest.raises(CheckpointError, match=says("--resume", damaged)):  # which a folder's search passes over
        find_checkpoint(damaged)


@pytest.mark.parametrize("best", [False, True])
def test_a_model_needs_no_state_of_single_ranks(folder, make, best):
    folder.save(make(1), keep=1, is_best=True)
    for target in (folder.path, folder.best):
        assert find_checkpoint(target, best).checkpoint.ranks.keys() == make(1).ranks.keys()
        checkpoint = find_checkpoint(target, best, ranks=False).checkpoint
        assert checkpoint.ranks == {} and checkpoint.weights.keys() == make(1).weights.keys()


# Going on from an earlier one.


def test_later_ones_are_put_aside_and_a_good_best_one_of_before_stays(folder, make):
    for iteration in (1, 2, 3):
        folder.save(make(iteration), keep=3, is_best=iteration == 2)
    assert [path.name for path in folder.supersede(2)] == ["superseded-iteration-00000003.h5"]
    assert folder.supersede(2) == [] and find_checkpoint(folder.path, best=True).checkpoint.iteration == 2
    aside = sorted(path.name for path in folder.supersede(1))
    assert aside == ["superseded-best.h5", "superseded-iteration-00000002.h5"]
    assert names(folder) == ["iteration-00000001.h5", *aside, "superseded-iteration-00000003.h5"]
    assert folder.latest().checkpoint.iteration == 1


def test_a_damaged_later_one_does_not_crowd_out_new_ones_nor_does_a_later_one_remove_the_saved(folder, make):
    for iteration in (9, 1, 2):
        folder.save(make(iteration), keep=1, is_best=False)
    assert names(folder) == ["iteration-00000002.h5", "iteration-00000009.h5"]
    damage(folder.numbered(9))
    folder.supersede(folder.latest().checkpoint.iteration)
    for iteration in (3, 4, 5):
        folder.save(make(iteration), keep=1, is_best=False)
    assert folder.latest().checkpoint.iteration == 5
