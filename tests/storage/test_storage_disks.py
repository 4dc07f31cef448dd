"""Disks that are full, fail, or are far away: what was there stays, and is not written to by another name."""

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.storage import files
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder.run_folder import RunFolder
from tests.says import says
from tests.storage.conftest import failing


@pytest.fixture
def folder(tmp_path, make):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    run.save(make(1), keep=2, is_best=True)
    return run


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EIO, RingtrainError, says("--resume", "the disk failed", "Input/output error")),
        (errno.EDQUOT, RingtrainError, says("--resume", "no room", "Disk quota exceeded")),
        (errno.ESTALE, RingtrainError, says("--resume", "the disk failed", "Stale file handle")),
        (errno.EROFS, UsageError, says("--out", "Read-only file system")),
    ],
)
@pytest.mark.parametrize("deed", ["fsync", "replace"])
def test_a_disk_that_refuses_keeps_what_was_there(folder, make, equal, monkeypatch, number, kind, message, deed):
    monkeypatch.setattr(os, deed, failing(number))
    with pytest.raises(kind, match=message):
        folder.save(make(2), keep=2, is_best=False)
    monkeypatch.undo()
    assert equal(folder.latest().checkpoint, make(1))
    assert not list(folder.checkpoints.glob(f"*{files.PARTIAL}"))


def test_a_file_is_on_the_disk_before_it_takes_its_name_and_the_name_before_the_write_returns(tmp_path, monkeypatch):
    deeds = []

    def noted(name, real, kind):
        monkeypatch.setattr(os, name, lambda *args, **named: (deeds.append(kind(*args)), real(*args, **named))[1])

    noted("fsync", os.fsync, lambda number: "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
    noted("replace", os.replace, lambda *names: "name")
    files.write(tmp_path / "a", b"content")
    assert deeds == ["file", "name", "folder"]


def test_a_file_system_that_cannot_sync_folders_and_an_old_one_that_cannot_be_removed(folder, make, monkeypatch):
    (folder.checkpoints / "iteration-00000000.h5").mkdir()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda n: real(n) if os.readlink(f"/proc/self/fd/{n}").endswith(files.PARTIAL)
                        else failing(errno.EINVAL)())  # fmt: skip
    folder.save(make(2), keep=1, is_best=False)
    assert folder.latest().checkpoint.iteration == 2


@pytest.mark.parametrize("is_done", [True, False])
def test_a_rename_whose_answer_is_that_the_old_name_is_missing(folder, make, equal, monkeypatch, is_done):
    """NFS: the answer is lost, and the second try finds nothing of the old name."""
    real = os.replace

    def replace(old, new):
        real(old, new) if is_done else os.unlink(old)
        failing(errno.ENOENT)()

    monkeypatch.setattr(os, "replace", replace)
    if is_done:
        folder.save(make(2), keep=2, is_best=True)
        assert equal(store.load_checkpoint(folder.numbered(2)), make(2))
    else:
        with pytest.raises(UsageError, match=says("--out", "No such file or directory")):
            folder.save(make(2), keep=2, is_best=True)
    assert equal(store.load_checkpoint(folder.best), make(2 if is_done else 1))


def test_a_link_that_was_made_and_is_said_not_to_be(folder, make, equal, monkeypatch):
    """NFS likewise. The copy that is made in its place must not be written into the file itself."""
    real, opened = os.link, []

    def link(old, new, **how):
        real(old, new, **how)
        opened.append(os.stat(new).st_ino)
        failing(errno.EEXIST)()

    monkeypatch.setattr(os, "link", link)
    folder.save(make(2), keep=2, is_best=True)
    assert equal(store.load_checkpoint(folder.numbered(2)), make(2)) and equal(
        store.load_checkpoint(folder.best), make(2)
    )
    assert folder.best.stat().st_ino == opened[0] != folder.numbered(2).stat().st_ino


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", disk]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk is mounted by root alone, where the machine lets it")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_and_then_room_on_it(small_disk, make, equal):
    folder = RunFolder(small_disk)
    folder.checkpoints.mkdir()
    saved = 0
    with pytest.raises(RingtrainError, match=says("--resume", "no room", "No space left on device")):
        while True:
            folder.save(make(saved + 1), keep=100, is_best=saved % 2 == 0)
            saved += 1
    assert saved >= 2 and equal(folder.latest().checkpoint, make(saved))
    assert not list(folder.checkpoints.glob(f"*{files.PARTIAL}"))
    folder.claim(resume=True)  # there is no room for a word in the lock's file either
    folder.numbered(1).unlink()
    folder.numbered(2).unlink()
    folder.save(make(saved + 1), keep=2, is_best=False)
    assert equal(folder.latest().checkpoint, make(saved + 1))
    folder.release()


def test_what_a_link_names_is_written_a_pipe_directly_and_a_full_device_is_named(tmp_path):
    """The link stays, as /dev/stdout has to where root writes to it."""
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    link.symlink_to(target)
    for content in (b"first", b"second"):
        files.write(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write(pipe, b"third")
    assert os.read(reader, 9) == b"third" and pipe.is_fifo()
    os.close(reader)
    with pytest.raises(RingtrainError, match=says("--resume", "/dev/full", "no room")):
        files.write(Path("/dev/full"), b"some")
