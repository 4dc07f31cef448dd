"""compute-sanitizer over files of tests, within a time: what it says of each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "ops"


@pytest.fixture
def sanitizer(acceptance, monkeypatch):
    """In the tool's place a program that ends with a code, or not at all."""
    module = acceptance("sanitizer")
    programs = {"waits": "import signal; signal.pause()"}
    command = lambda tool, file: [sys.executable, "-c", programs.get(file, f"raise SystemExit({file})")]  # noqa: E731
    monkeypatch.setattr(module, "command", command)
    return module


@pytest.mark.parametrize(
    ("code", "status"), [(0, "clean"), (9, "errors found"), (5, "no test of the device"), (1, "exit code 1")]
)
def test_what_a_file_ends_as(sanitizer, code, status):
    assert sanitizer.checked("memcheck", str(code), 60, subprocess.DEVNULL)["status"] == status


def test_a_file_that_takes_too_long_is_ended_and_told(sanitizer, monkeypatch):
    monkeypatch.setattr(sanitizer, "LEAST_S", 0.1)
    assert sanitizer.checked("racecheck", "waits", 0.5, subprocess.DEVNULL)["status"] == "not done"


def test_what_no_time_is_left_for_is_not_begun(sanitizer):
    assert sanitizer.checked("memcheck", "9", 1, subprocess.DEVNULL)["status"] == "not reached"


def test_its_files_are_there(acceptance):
    module = acceptance("sanitizer")
    assert [name for name in module.FILES if not (TESTS / name).exists()] == []
    line = " ".join(module.command("racecheck", module.FILES[0]))
    assert line.startswith("compute-sanitizer --tool racecheck --error-exitcode 9 ") and " -m device " in line


def test_files_that_were_not_reached_fall_short(acceptance, tmp_path):
    rows = [
        {"tool": "memcheck", "file": name, "status": status} for name, status in (("a", "clean"), ("b", "not done"))
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert acceptance("readings").sanitizer(tmp_path).short == "no time was left for 1: memcheck of b"
    (tmp_path / "rows.json").write_text(json.dumps(rows[:1]))
    assert acceptance("readings").sanitizer(tmp_path).short == ""
