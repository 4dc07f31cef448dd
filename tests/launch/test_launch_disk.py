"""The place where runs go: full, forbidden, seen by one node alone, slow."""

from types import SimpleNamespace

import pytest

from ringtrain.errors import RingtrainError
from ringtrain.humanize import format_seconds
from ringtrain.launch.doctor import disk
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line
from tests.fakes.doctor_context import lines_of
from tests.says import says


def looked(root, size=1, check=disk.run_folder, **how):
    every = lines_of(check, root, size, **how)
    assert all(lines == every[0] for lines in every)
    assert not list(root.rglob(".ringtrain-doctor*"))
    return {line.name: line for line in every[0]}


def test_a_place_that_is_well(tmp_path):
    lines = looked(tmp_path, 3, nodes=2, path=lambda rank: tmp_path / "runs/new")
    assert list(lines) == ["run folder"] and lines["run folder"].status == OK
    assert lines["run folder"].text == says(tmp_path)


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=disk.GIB - 1))
    line = looked(tmp_path)["run folder"]
    assert (line.status, line.advice) == (WARN, says("--out"))


def test_a_place_where_nothing_can_be_written_is_a_failure(tmp_path, monkeypatch):
    def read_only(path, content):
        raise RingtrainError(f"{path.name}: writing is not allowed")

    monkeypatch.setattr(disk.files, "write", read_only)
    assert list(looked(tmp_path, 2).values()) == [
        Line(FAIL, "run folder", "mark: writing is not allowed", says("--out"))
    ]
    assert looked(tmp_path, check=disk.disk) == {}
    for error, words in (
        (OSError(30, "Read-only file system"), ("Read-only file system",)),
        (FileNotFoundError(2), ()),
    ):
        monkeypatch.setattr(disk, "folder_in", lambda path, error=error: (_ for _ in ()).throw(error))
        assert looked(tmp_path, 2)["run folder"].text == says(tmp_path, *words)


def test_a_place_of_one_node_alone_is_a_warning(tmp_path, monkeypatch):
    really = disk.os.path.isfile
    seen = iter([True, False, False])
    monkeypatch.setattr(disk.os.path, "isfile", lambda path: next(seen) and really(path))
    line = looked(tmp_path, 3, nodes=3, hosts=["a", "a", "a"])["run folder's place"]
    assert line == Line(WARN, "run folder's place", says("a"), says("--out"))
    assert list(disk._lines(tmp_path, "", list("abcdef")))[1].text == says("a, b, c, d and 2 more")


def test_a_file_in_the_folders_place_is_a_failure(tmp_path):
    (tmp_path / "runs").touch()
    line = looked(tmp_path, path=lambda rank: tmp_path / "runs/a")["run folder"]
    assert line.status == FAIL and line.text == says(tmp_path / "runs", "Not a directory")


@pytest.mark.parametrize("seconds, status", [(1e-4, OK), (0.2, WARN)])
def test_the_disk_is_timed(tmp_path, monkeypatch, seconds, status):
    clock = iter(range(1000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(clock) * seconds)
    monkeypatch.setattr(disk, "BLOCK", 1 << 10)
    monkeypatch.setattr(disk, "SLOW_BYTES_PER_S", 100e3)
    monkeypatch.setattr(disk, "MOST_BYTES", 4 << 10)
    line = looked(tmp_path, 2, check=disk.disk)["disk"]
    assert (line.status, line.advice) == (status, says("--checkpoint-every", "--out") if status == WARN else "")
    assert line.text == says(0, format_seconds(seconds))
