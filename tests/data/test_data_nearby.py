"""Copies of a data set's file on a disk of the node's own."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ringtrain.data import nearby as room
from ringtrain.data.nearby import folder_of, nearby
from ringtrain.errors import DataError

OWN = f"ringtrain-data-{os.getuid()}"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "far" / "set.h5"
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 64)
    return path


@pytest.fixture
def near(tmp_path):
    path = tmp_path / "near"
    path.mkdir()
    return path


def left(near) -> list[str]:
    """What there is besides the lock; where there is nothing, that is gone, and the folder too."""
    found = sorted(path.name for path in (near / OWN).iterdir()) if (near / OWN).exists() else ["lock"]
    found.remove("lock")
    assert found or os.listdir(near) == []
    return found


def test_a_copy_is_the_same_and_goes_when_it_is_not_needed(source, near):
    with nearby(source, near, keep=False) as copy:
        assert copy.parent == near / OWN and copy.name.endswith("-set.h5")
        assert copy.read_bytes() == source.read_bytes()
        assert (near / OWN).stat().st_mode & 0o777 == 0o700
    assert left(near) == []


def test_one_that_is_kept_is_used_again(source, near, monkeypatch):
    with nearby(source, near, keep=True) as copy:
        pass
    assert left(near) == [copy.name, f"{copy.name}.sha256"]
    monkeypatch.setattr(room, "_copy", None)
    with nearby(source, near, keep=False) as again:
        assert again == copy
    assert left(near) == []


@pytest.mark.parametrize("spoil", ["bytes", "length", "note", "no note"])
def test_one_that_is_not_whole_is_made_anew(source, near, spoil):
    with nearby(source, near, keep=True) as copy:
        pass
    noted = copy.with_name(f"{copy.name}.sha256")
    if spoil == "bytes":
        copy.write_bytes(b"?" + source.read_bytes()[1:])
    elif spoil == "length":
        copy.write_bytes(source.read_bytes()[:-1])
    elif spoil == "note":
        noted.write_text("0" * 64)
    else:
        noted.unlink()
    with nearby(source, near, keep=True) as again:
        assert again == copy and copy.read_bytes() == source.read_bytes()


def test_a_source_that_was_changed_has_another_copy(source, near):
    with nearby(source, near, keep=True) as first:
        pass
    source.write_bytes(b"other")
    with nearby(source, near, keep=True) as second:
        assert second != first and second.read_bytes() == b"other"


def test_what_a_killed_process_left_goes(source, near):
    (near / OWN).mkdir(parents=True)
    (near / OWN / "x-set.h5.ringtrain-partial").write_bytes(b"half")
    with nearby(source, near, keep=True) as copy:
        assert left(near) == [copy.name, f"{copy.name}.sha256"]


def test_one_that_another_run_uses_stays(source, near):
    program = (
        "import sys; from pathlib import Path; from ringtrain.data.nearby import nearby\n"
        "with nearby(Path(sys.argv[1]), Path(sys.argv[2]), False) as copy:\n"
        "    print(copy, flush=True); input()"
    )
    command = [sys.executable, "-c", program, source, near]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        with nearby(source, near, keep=False) as ours:
            assert ours == theirs
        assert ours.exists()
        other.communicate("\n", timeout=30)
    assert left(near) == []


# ── long files ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_progress_is_told_of_each_block(source, near, monkeypatch):
    monkeypatch.setattr(room, "BLOCK_BYTES", 6000)
    blocks, told = [6000, 12000, 16384], []
    with nearby(source, near, True, lambda *block: told.append(block)):
        assert told == [(what, done, 16384) for what in ("copying", "checking") for done in blocks]
    told.clear()
    with nearby(source, near, True, lambda *block: told.append(block)):
        assert told == [("checking", done, 16384) for done in blocks]


@pytest.mark.parametrize("leaving", [False, True])
def test_who_waits_gets_on_as_the_one_that_is_waited_for_does(source, near, monkeypatch, leaving):
    """Polls in which the lock's time has changed, and the last, before which the lock is let go."""
    (near / OWN).mkdir(parents=True)
    lock, told, at = near / OWN / "lock", [], iter([1, 1, 1, 2, 2, 3, None])
    lock.touch()
    os.utime(lock, (1, 1))
    with lock.open() as held:

        def poll(seconds):
            now = next(at)
            os.utime(lock, (now, now)) if now else held.close()

        monkeypatch.setattr(room.time, "sleep", poll)
        if not leaving:
            fcntl.flock(held, fcntl.LOCK_EX)
        with nearby(source, near, False, lambda *block: told.append(block)):
            if leaving:
                fcntl.flock(held, fcntl.LOCK_EX)
                os.utime(lock, (1, 1))
                told.clear()
    assert [what for what, *_ in told] == ["waiting", "waiting", *([] if leaving else ["copying", "checking"])]
    assert left(near) == []


def test_who_copies_says_so_to_those_who_wait(source, near):
    """By the time of the lock, at each block."""
    lock, seen = near / OWN / "lock", []

    def told(*block):
        seen.append(lock.stat().st_mtime_ns)
        os.utime(lock, (1, 1))

    with nearby(source, near, False, told):
        assert len(seen) == 2 and min(seen) > 1e9 * 1e9


# ── file systems whose locks are others ───────────────────────────────────────────────────────────────────────────────
def without(monkeypatch, refused):
    """flock that fails as refused(descriptor, operation) says: an error's number, or None."""
    real = fcntl.flock

    def flock(descriptor, operation):
        number = refused(descriptor, operation)
        if number is not None:
            raise OSError(number, os.strerror(number))
        real(descriptor, operation)

    monkeypatch.setattr(room.fcntl, "flock", flock)


def test_nfs_wants_a_file_open_for_writing_for_a_lock_that_excludes(source, near, monkeypatch):
    def refused(descriptor, operation):
        reading = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        return errno.EBADF if reading and operation & fcntl.LOCK_EX else None

    without(monkeypatch, refused)
    with nearby(source, near, keep=False):
        pass
    assert left(near) == []


def test_a_copy_that_may_be_in_use_is_left(source, near, monkeypatch):
    def refused(descriptor, operation):
        last = operation & fcntl.LOCK_EX and os.readlink(f"/proc/self/fd/{descriptor}").endswith("-set.h5")
        return errno.ENOLCK if last else None

    without(monkeypatch, refused)
    with nearby(source, near, keep=False) as copy:
        pass
    assert left(near) == [copy.name, f"{copy.name}.sha256"]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────
def refused(source, near) -> str:
    with pytest.raises(DataError) as error, nearby(source, near, keep=False):
        pass
    told = str(error.value)
    assert told.startswith(f"--stage {near} on {socket.gethostname()}: ")
    assert told.endswith("; name another folder of the node's, or leave --stage out")
    return told.removeprefix(f"--stage {near} on {socket.gethostname()}: ").split(";")[0]


def test_no_room(source, near, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 9, 9))
    assert refused(source, near) == f"{source} has 16,384 bytes, and 9 are free"


def test_a_disk_that_fails(source, near, monkeypatch):
    def full(source, aside, progress):
        aside.write_bytes(b"part")
        raise OSError(28, "No space left on device", str(aside))

    monkeypatch.setattr(room, "_copy", full)
    assert refused(source, near).endswith("ringtrain-partial: No space left on device")
    assert left(near) == []


def test_a_disk_that_holds_something_else(source, near, monkeypatch):
    monkeypatch.setattr(room, "_sha256", lambda path, progress: "other")
    assert refused(source, near) == f"the copy of {source} is not what was written: the disk is at fault"
    assert left(near) == []


def test_a_file_where_a_folder_is_wanted(source, near):
    near.rmdir()
    near.write_text("")
    assert refused(source, near) == "there is no such folder: make it on each node"


def test_no_folder_is_made_but_ringtrains_own(source, tmp_path):
    assert refused(source, tmp_path / "typo") == "there is no such folder: make it on each node"
    assert not (tmp_path / "typo").exists()


def test_a_folder_that_another_run_removed_meanwhile_is_made_again(source, near, monkeypatch):
    """The lock that this one waited for is of no file any more."""
    taken, real = [], room._take

    def take(file, progress):
        real(file, progress)
        if not taken:
            taken.append(room._remove_empty(near / OWN))

    monkeypatch.setattr(room, "_take", take)
    with nearby(source, near, keep=False) as copy:
        assert copy.read_bytes() == source.read_bytes() and taken
    assert left(near) == []


def test_a_link_that_somebody_laid(source, near, tmp_path):
    (near / OWN).symlink_to(tmp_path / "far")
    assert refused(source, near) == f"{near / OWN} is there, and is no folder of yours"


def test_where_copies_go():
    environ = {"SLURM_TMPDIR": "/job", "TMPDIR": "/mine"}
    assert folder_of("/scratch", environ) == Path("/scratch")
    assert folder_of("auto", environ) == Path("/job")
    assert folder_of("auto", {"TMPDIR": "/mine", "SLURM_TMPDIR": ""}) == Path("/mine")
    assert folder_of("auto", {}) == Path("/tmp")
