"""One run at a time in a folder, and the lock ends with whoever holds it."""

import errno
import fcntl
import os
import select
import signal

import pytest

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.storage.run_folder import lock
from tests.says import says
from tests.storage.conftest import failing


def never(seconds):
    pytest.fail("it waited for a process that is there")


@pytest.fixture
def stranger(tmp_path):
    """Another process that holds the lock; ``stranger()`` kills it."""
    tell, reader = os.pipe()[::-1]
    child = os.fork()
    if child == 0:
        lock.take_lock(tmp_path)
        os.write(tell, b"!")
        signal.pause()
    os.read(reader, 1)

    def end():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    end.number = child
    yield end
    os.close(tell), os.close(reader)
    try:
        end()
    except ProcessLookupError:
        return


def in_use_by(other) -> str:
    return r"is in use by " + says(other.number)


def test_a_second_run_is_refused_by_name_and_a_killed_owner_leaves_no_lock(tmp_path, stranger):
    with pytest.raises(UsageError, match=in_use_by(stranger)):
        lock.take_lock(tmp_path, sleep=never)
    stranger()
    for _ in range(2):
        lock.take_lock(tmp_path, sleep=never).release()


def test_a_lock_that_outlives_its_owner_is_waited_for_with_patience(tmp_path):
    first, waited = lock.take_lock(tmp_path), []
    (tmp_path / lock.NAME).write_text("[1]")
    with pytest.raises(UsageError, match=says("--out", "by another process")):
        lock.take_lock(tmp_path, patience_s=1, sleep=waited.append)
    assert len(waited) == 10
    (tmp_path / lock.NAME).write_text("h 1 1 then")

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 13:
            first.release()

    lock.take_lock(tmp_path, patience_s=1, sleep=wait).release()
    assert len(waited) == 13
    first.release()


def test_a_copy_of_the_owner_keeps_it(tmp_path):
    first = lock.take_lock(tmp_path)
    go, gone = os.pipe()
    child = os.fork()
    if child == 0:
        select.select([go], [], [])
        os._exit(0)
    first.release()
    with pytest.raises(UsageError, match=says("--out", tmp_path)):
        lock.take_lock(tmp_path, patience_s=0)
    os.write(gone, b"!")
    os.waitpid(child, 0)
    lock.take_lock(tmp_path, sleep=never).release()
    os.close(go), os.close(gone)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/nowhere/else", path)])
def test_what_is_in_its_way_is_put_aside(tmp_path, make):
    make(tmp_path / lock.NAME)
    lock.take_lock(tmp_path, sleep=never).release()
    assert sorted(os.listdir(tmp_path)) == [lock.NAME, f"superseded-{lock.NAME}"]


def test_without_locks_the_user_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    taken = lock.take_lock(tmp_path, sleep=never)
    assert taken.warning == says(tmp_path) and not lock.is_held(tmp_path)
    taken.release()


def test_a_disk_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(RingtrainError, match=says("--resume", ".lock", "the disk failed")):
        lock.take_lock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(UsageError, match=says("--out", tmp_path / "none")):
        lock.take_lock(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "{", "h 1 1", "h x 1 then", '{"host": "h", "process": 2}'])
def test_words_of_nobody(tmp_path, text):
    (tmp_path / "x").write_text(text)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    assert lock._owner(descriptor) is None
    os.close(descriptor)
