import datetime
import os
import re

import pytest

from ringtrain.errors import CheckpointError, RingtrainError, UsageError
from ringtrain.storage.checkpoint import store
from ringtrain.storage.files import PARTIAL
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder, find_checkpoint
from tests.says import says

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


# Making one.


def test_a_run_is_named_by_model_and_time(tmp_path):
    first, second, third = (create_run_folder(None, "my/model 1", NOW, False, runs=tmp_path / "runs") for _ in range(3))
    assert first.path == tmp_path / "runs" / "my_model_1-20260131-235958"
    assert [second.path.name[-2:], third.path.name[-2:]] == ["-2", "-3"]
    assert first.checkpoints.is_dir()
    assert os.listdir(first.path) == ["checkpoints"]


def test_a_folder_that_exists_is_taken(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "download.partial").write_text("mine too")
    assert create_run_folder(str(tmp_path), "mlp", NOW, resume=False).path == tmp_path
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "download.partial", "notes.txt"]


@pytest.mark.parametrize("held", ["config.toml", "log.jsonl", "checkpoints/iteration-00000007.h5"])
def test_a_folder_with_a_run_is_refused_unless_it_is_resumed(folder, held):
    (folder.path / held).write_text("")
    message = says("--resume", "--out", folder.path, os.path.basename(held))
    with pytest.raises(UsageError, match=message):
        create_run_folder(str(folder.path), "mlp", NOW, resume=False)
    assert create_run_folder(str(folder.path), "mlp", NOW, resume=True).path == folder.path
    assert (folder.path / held).exists()


@pytest.mark.parametrize("out", ["file", "file/below/it"])
def test_a_file_in_the_way(tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=says("--out", tmp_path / "file")):
        create_run_folder(str(tmp_path / out), "mlp", NOW, resume=False)


def test_a_file_where_the_checkpoints_would_be(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UsageError, match=says("--out", tmp_path / "checkpoints")):
        create_run_folder(str(tmp_path), "mlp", NOW, resume=False)


def test_a_folder_that_may_not_be_made(forbidden_folder):
    with pytest.raises(UsageError, match=says("--out", "run")):
        create_run_folder(str(forbidden_folder / "run"), "mlp", NOW, resume=False)


def test_a_folder_that_is_there_and_may_not_be_written(forbidden_folder):
    # Its own user may write to a folder again, so that the checkpoints folder can be put into it.
    me = os.geteuid()
    os.seteuid(os.getuid())
    forbidden_folder.chmod(0o755)
    (forbidden_folder / "checkpoints").mkdir()
    forbidden_folder.chmod(0o555)
    os.seteuid(me)
    with pytest.raises(UsageError, match=says("--out")):
        create_run_folder(str(forbidden_folder), "mlp", NOW, resume=False)


def test_what_killed_writers_left_is_removed(folder):
    for place in (folder.path, folder.checkpoints):
        (place / f"x.123{PARTIAL}").write_text("half")
    (folder.checkpoints / f"folder{PARTIAL}").mkdir()  # not ours
    folder.claim(resume=True)
    assert sorted(os.listdir(folder.path)) == [".lock", "checkpoints"]
    assert names(folder) == [f"folder{PARTIAL}"]


def test_text_is_replaced(folder):
    folder.write_text(folder.config, "seed = 1\n")
    folder.write_text(folder.config, "name = 'größer'\n")
    assert folder.config.read_text(encoding="utf-8") == "name = 'größer'\n"
    assert sorted(os.listdir(folder.path)) == ["checkpoints", "config.toml"]


def test_text_on_a_full_disk(folder, small_files):
    folder.write_text(folder.config, "seed = 1\n")
    with small_files(10), pytest.raises(RingtrainError, match=r"config.toml: no room for 4,000 bytes"):
        folder.write_text(folder.config, "x" * 4000)
    assert folder.config.read_text() == "seed = 1\n"


# Saving.


def test_the_newest_are_kept_and_the_best(folder, make, equal):
    for iteration in (1, 2, 3, 10, 100_000_000):
        folder.save(make(iteration), keep=2, is_best=iteration == 2)
    assert names(folder) == ["best.h5", "iteration-00000010.h5", "iteration-100000000.h5"]
    assert equal(store.load_checkpoint(folder.best), make(2))
    assert equal(folder.latest().checkpoint, make(100_000_000))


def test_a_best_one_takes_no_room_twice(folder, make):
    path = folder.save(make(1), keep=1, is_best=True)
    assert path == folder.numbered(1)
    assert path.samefile(folder.best)


def test_a_later_best_one_leaves_numbered_ones_as_they_are(folder, make, equal):
    folder.save(make(1), keep=2, is_best=True)
    folder.save(make(2), keep=2, is_best=True)
    assert equal(store.load_checkpoint(folder.numbered(1)), make(1))
    assert equal(store.load_checkpoint(folder.best), make(2))


def test_a_copy_serves_where_a_file_can_have_one_name(folder, make, equal, monkeypatch):
    def refuse(old, new, **handles):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder.save(make(1), keep=1, is_best=True)
    assert equal(store.load_checkpoint(folder.numbered(1)), make(1))
    assert names(folder) == ["best.h5", "iteration-00000001.h5"]


def test_keeping_none_is_refused(folder, make):
    with pytest.raises(UsageError, match=says(0, "keep", "newest")):
        folder.save(make(), keep=0, is_best=False)


@pytest.mark.parametrize("is_best", [False, True])
def test_a_full_disk_keeps_all_that_was_there(folder, make, small_files, is_best):
    folder.save(make(1), keep=1, is_best=True)
    with small_files(3000), pytest.raises(RingtrainError, match="no room for"):
        folder.save(make(2), keep=1, is_best=is_best)
    assert names(folder) == ["best.h5", "iteration-00000001.h5"]
    assert folder.latest().checkpoint.iteration == 1


# Finding.


def test_damaged_ones_are_passed_over_and_named(folder, make, equal):
    for iteration in (1, 2, 3):
        folder.save(make(iteration), keep=3, is_best=False)
    damage(folder.numbered(3))
    folder.numbered(2).write_bytes(b"")
    found = folder.latest()
    assert (found.path, found.checkpoint.iteration) == (folder.numbered(1), 1)
    assert len(found.skipped) == 2
    assert re.search(
        says("--resume", folder.numbered(3), "do", "match"),
        found.skipped[0],
    )
    assert re.search(
        says("--resume", folder.numbered(2), 0, "only", "long"),
        found.skipped[1],
    )


def test_the_best_one_is_the_last_resort(folder, make):
    folder.save(make(1), keep=1, is_best=True)
    folder.save(make(2), keep=1, is_best=False)
    damage(folder.numbered(2))
    assert folder.latest().path == folder.best


def test_none_is_good(folder, make):
    folder.save(make(1), keep=1, is_best=False)
    damage(folder.numbered(1))
    with pytest.raises(CheckpointError, match=says(folder.path)):
        folder.latest()


def test_none_is_there_but_beside_it(folder, make):
    (folder.path.parent / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(
        CheckpointError,
        match=says("run", "other"),
    ):
        folder.latest()


def test_other_files_are_no_checkpoints(folder, make):
    assert folder.is_empty()
    for name in ("iteration-7.h5", "iteration-abcdefgh.h5", "iteration-00000009.h5.1.ringtrain-partial"):
        (folder.checkpoints / name).write_text("")
    assert folder.is_empty()
    folder.save(make(0), keep=1, is_best=False)
    assert not folder.is_empty()
    assert folder.latest().checkpoint.iteration == 0


def test_what_a_user_may_name(folder, make, monkeypatch):
    folder.save(make(1), keep=2, is_best=True)
    folder.save(make(2), keep=2, is_best=False)
    assert find_checkpoint(folder.numbered(1)).checkpoint.iteration == 1
    assert find_checkpoint(str(folder.path)).checkpoint.iteration == 2
    assert find_checkpoint(folder.checkpoints).checkpoint.iteration == 2
    assert find_checkpoint(folder.path, best=True).checkpoint.iteration == 1
    monkeypatch.chdir(folder.checkpoints)
    assert find_checkpoint(".").checkpoint.iteration == 2


@pytest.mark.parametrize("best", [False, True])
def test_a_model_needs_no_state_of_single_ranks(folder, make, best):
    folder.save(make(1), keep=1, is_best=True)
    for target in (folder.path, folder.best):
        assert find_checkpoint(target, best).checkpoint.ranks.keys() == make(1).ranks.keys()
        held = find_checkpoint(target, best, ranks=False).checkpoint
        assert held.ranks == {} and held.weights.keys() == make(1).weights.keys()


def test_the_newest_serves_where_there_is_no_best_one(folder, make):
    folder.save(make(1), keep=1, is_best=False)
    assert find_checkpoint(folder.path, best=True).checkpoint.iteration == 1


def test_a_file_that_is_named_and_damaged_is_not_passed_over(folder, make):
    folder.save(make(1), keep=2, is_best=True)
    damage(folder.save(make(2), keep=2, is_best=False))
    with pytest.raises(CheckpointError, match=says("--resume", folder.numbered(2))):
        find_checkpoint(folder.numbered(2))


def test_a_name_of_nothing(folder):
    with pytest.raises(
        CheckpointError,
        match=says("rum", "run"),
    ):
        find_checkpoint(folder.path.parent / "rum")


# Going on from an earlier one.


def test_later_ones_are_put_aside(folder, make):
    for iteration in (1, 2, 3):
        folder.save(make(iteration), keep=3, is_best=iteration == 3)
    aside = folder.supersede(1)
    assert sorted(path.name for path in aside) == [
        "superseded-best.h5",
        "superseded-iteration-00000002.h5",
        "superseded-iteration-00000003.h5",
    ]
    assert names(folder) == ["iteration-00000001.h5", *sorted(path.name for path in aside)]
    assert folder.latest().checkpoint.iteration == 1


def test_a_damaged_later_one_does_not_crowd_out_new_ones(folder, make):
    for iteration in (1, 5):
        folder.save(make(iteration), keep=2, is_best=False)
    damage(folder.numbered(5))
    folder.supersede(folder.latest().checkpoint.iteration)
    for iteration in (2, 3, 4):
        folder.save(make(iteration), keep=1, is_best=False)
    assert folder.latest().checkpoint.iteration == 4


def test_one_that_was_just_saved_is_never_removed_for_a_later_one(folder, make):
    for iteration in (9, 1, 2):
        folder.save(make(iteration), keep=1, is_best=False)
    assert names(folder) == ["iteration-00000002.h5", "iteration-00000009.h5"]


def test_a_good_best_one_of_before_stays(folder, make):
    folder.save(make(1), keep=2, is_best=True)
    folder.save(make(2), keep=2, is_best=False)
    assert [path.name for path in folder.supersede(1)] == ["superseded-iteration-00000002.h5"]
    assert folder.supersede(1) == []
    assert find_checkpoint(folder.path, best=True).checkpoint.iteration == 1


def test_putting_aside_where_nothing_may_be_written(forbidden_folder, make):
    me = os.geteuid()
    os.seteuid(os.getuid())
    forbidden_folder.chmod(0o755)
    RunFolder(forbidden_folder).checkpoints.mkdir()
    RunFolder(forbidden_folder).save(make(2), keep=1, is_best=False)
    RunFolder(forbidden_folder).checkpoints.chmod(0o555)
    os.seteuid(me)
    with pytest.raises(UsageError, match=says("--out", "superseded-iteration-00000002.h5")):
        RunFolder(forbidden_folder).supersede(1)
