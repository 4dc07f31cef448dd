"""The place where runs go: full, forbidden, seen by one node alone, slow."""

import re
from types import SimpleNamespace

import pytest

from ringtrain.errors import RingtrainError
from ringtrain.humanize import format_seconds
from ringtrain.launch import texts
from ringtrain.launch.doctor import disk
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line
from tests.fakes.doctor_context import lines_of


def looked(root, size=1, check=disk.run_folder, **how):
    every = lines_of(check, root, size, **how)
    assert all(lines == every[0] for lines in every)
    assert not list(root.rglob(".ringtrain-doctor*"))
    return {line.name: line for line in every[0]}


def test_a_place_that_is_well(tmp_path):
    lines = looked(tmp_path, 3, nodes=2, path=lambda rank: tmp_path / "runs/new")
    assert list(lines) == ["run folder"] and lines["run folder"].status == OK
    assert re.fullmatch(texts.FOLDER.pattern(place=tmp_path), lines["run folder"].text)


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=disk.GIB - 1))
    line = looked(tmp_path)["run folder"]
    assert (line.status, line.advice) == (WARN, texts.FOLDER_MAKE_ROOM)


def test_a_place_where_nothing_can_be_written_is_a_failure(tmp_path, monkeypatch):
    def read_only(path, content):
        raise RingtrainError(f"{path.name}: writing is not allowed")

    monkeypatch.setattr(disk.files, "write", read_only)
    assert list(looked(tmp_path, 2).values()) == [
        Line(FAIL, "run folder", "mark: writing is not allowed", texts.FOLDER_MOVE)
    ]
    assert looked(tmp_path, check=disk.disk) == {}
    monkeypatch.setattr(disk, "folder_in", lambda place: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert looked(tmp_path, 2)["run folder"].text == texts.FOLDER_REFUSED(place=tmp_path, why="Read-only file system")
    monkeypatch.setattr(disk, "folder_in", lambda place: (_ for _ in ()).throw(FileNotFoundError(2, "No such file")))
    assert looked(tmp_path, 2)["run folder"].text == texts.FOLDER_UNMADE(place=tmp_path)


def test_a_place_of_one_node_alone_is_a_warning(tmp_path, monkeypatch):
    really = disk.os.path.isfile
    seen = iter([True, False, False])
    monkeypatch.setattr(disk.os.path, "isfile", lambda path: next(seen) and really(path))
    line = looked(tmp_path, 3, nodes=3, hosts=["a", "a", "a"])["run folder's place"]
    assert line == Line(WARN, "run folder's place", texts.FOLDER_UNSEEN(hosts="a"), texts.FOLDER_SHARE)
    assert disk._apart(list("abcdef")).text == texts.FOLDER_UNSEEN(hosts="a, b, c, d and 2 more")


def test_a_file_in_the_folders_place_is_a_failure(tmp_path):
    (tmp_path / "runs").touch()
    line = looked(tmp_path, path=lambda rank: tmp_path / "runs/a")["run folder"]
    assert line.status == FAIL and line.text == texts.FOLDER_REFUSED(place=tmp_path / "runs", why="Not a directory")


@pytest.mark.parametrize("seconds, status", [(1e-4, OK), (0.2, WARN)])
def test_the_disk_is_timed(tmp_path, monkeypatch, seconds, status):
    clock = iter(range(1000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(clock) * seconds)
    monkeypatch.setattr(disk, "BLOCK", 1 << 10)
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 100e3)
    monkeypatch.setattr(disk, "MOST_BYTES", 4 << 10)
    line = looked(tmp_path, 2, check=disk.disk)["disk"]
    assert (line.status, line.advice) == (status, texts.DISK_SLOW if status == WARN else "")
    assert re.fullmatch(texts.DISK.pattern(mib=0, small=format_seconds(seconds)), line.text)
