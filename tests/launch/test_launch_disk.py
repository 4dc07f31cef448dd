"""The place where runs go: full, forbidden, seen by one node alone, slow."""

import fcntl
import os
from types import SimpleNamespace

import pytest

from ringtrain.checkpoint import trial
from ringtrain.errors import RingtrainError
from ringtrain.humanize import format_seconds
from ringtrain.launch.doctor import disk
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line
from tests.fakes.visits import lines_of, put


def looked(root, size=1, check=disk.run_folder, **how):
    every = lines_of(check, root, size, **how)
    assert all(lines == every[0] for lines in every)
    assert not list(root.rglob(".ringtrain-doctor*"))
    return {line.name: line for line in every[0]}


def test_a_place_that_is_well(tmp_path):
    put(tmp_path, {"proc/self/mountinfo": f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - lustre b rw\n"})
    lines = looked(tmp_path, 3, nodes=2, path=lambda rank: tmp_path / "runs/new")
    assert list(lines) == ["run folder", "HDF5"]
    assert lines["run folder"].status == OK and lines["run folder"].text.startswith(f"{tmp_path}: lustre, ")
    assert lines["HDF5"] == Line(OK, "HDF5", f"{trial.hdf5_version()}: a file was written, locked and read")


def test_file_systems_by_their_mounts(tmp_path):
    assert disk.file_system(tmp_path, tmp_path) == "an unknown file system"
    put(
        tmp_path,
        {"proc/self/mountinfo": "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /my\\040runs rw shared:1 - nfs4 b rw\n"},
    )
    kinds = [disk.file_system(tmp_path, disk.Path(path)) for path in ("/my runs/a", "/my", "/")]
    assert kinds == ["nfs4", "ext4", "ext4"]


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=disk.LITTLE_BYTES - 1))
    line = looked(tmp_path)["run folder"]
    assert line.status == WARN and "make room" in line.advice


def test_a_place_where_nothing_can_be_written_is_a_failure(tmp_path, monkeypatch):
    def read_only(path, content):
        raise RingtrainError(f"{path.name}: writing is not allowed")

    monkeypatch.setattr(disk.files, "write", read_only)
    assert list(looked(tmp_path, 2).values()) == [
        Line(FAIL, "run folder", "mark: writing is not allowed", "run where you may write, or name a place by --out")
    ]
    assert looked(tmp_path, check=disk.disk) == {}
    monkeypatch.setattr(disk, "folder_in", lambda place: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert looked(tmp_path, 2)["run folder"].text == f"{tmp_path}: Read-only file system"
    monkeypatch.setattr(disk, "folder_in", lambda place: (_ for _ in ()).throw(FileNotFoundError(2, "No such file")))
    assert looked(tmp_path, 2)["run folder"].text == f"{tmp_path}: its file system makes no folders"


def test_a_place_of_one_node_alone_is_a_warning(tmp_path, monkeypatch):
    really = disk.os.path.isfile
    seen = iter([True, False, False])
    monkeypatch.setattr(disk.os.path, "isfile", lambda path: next(seen) and really(path))
    line = looked(tmp_path, 3, nodes=3, hosts=["a", "a", "a"])["run folder's place"]
    assert (line.status, line.text) == (WARN, "is not seen from a") and "all nodes share" in line.advice
    assert disk._apart(list("abcdef")).text == "is not seen from a, b, c, d and 2 more"


def test_hdf5_that_fails_is_a_failure_and_locks_that_fail_are_a_warning(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    line = looked(tmp_path)["HDF5"]
    assert line.status == WARN and line.text.endswith("files cannot be locked there (No locks available)")
    assert "HDF5_USE_FILE_LOCKING=FALSE" in line.advice
    monkeypatch.setattr(disk, "try_hdf5", lambda path: "it is no file system")
    line = looked(tmp_path)["HDF5"]
    assert line.status == FAIL and line.text.endswith(": it is no file system")


def test_what_is_locked_is_open_for_writing(tmp_path, monkeypatch):
    """Or NFS refuses a lock for one alone."""

    def look(file, how):
        assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR and how & fcntl.LOCK_EX

    monkeypatch.setattr(disk.fcntl, "flock", look)
    assert looked(tmp_path)["HDF5"].status == OK


def test_a_file_in_the_folders_place_is_a_failure(tmp_path):
    (tmp_path / "runs").touch()
    line = looked(tmp_path, path=lambda rank: tmp_path / "runs/a")["run folder"]
    assert line.status == FAIL and line.text == f"{tmp_path / 'runs'}: Not a directory"


def test_the_trial_of_hdf5(tmp_path, monkeypatch):
    assert trial.try_hdf5(tmp_path / "a.h5") == ""
    assert "No such file" in trial.try_hdf5(tmp_path / "none/a.h5")
    monkeypatch.setattr(trial.np, "array_equal", lambda a, b: False)
    assert trial.try_hdf5(tmp_path / "a.h5") == "what was read is not what was written"


@pytest.mark.parametrize("seconds, status", [(1e-4, OK), (0.2, WARN)])
def test_the_disk_is_timed(tmp_path, monkeypatch, seconds, status):
    clock = iter(range(1000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(clock) * seconds)
    monkeypatch.setattr(disk, "BLOCK", 1 << 10)
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 100e3)
    monkeypatch.setattr(disk, "MOST_BYTES", 4 << 10)
    line = looked(tmp_path, 2, check=disk.disk)["disk"]
    assert line.status == status and (status == OK or "--checkpoint-every" in line.advice)
    assert line.text.endswith(f"a small file in {format_seconds(seconds)}")
