"""compute-sanitizer over files of tests, within a time: what it says of each."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A lock is free when the last process that inherited it is gone.
HOLD = """
import fcntl, os, signal
held = open({path!r}, "w")
fcntl.flock(held, fcntl.LOCK_EX)
if os.fork():
    print("held", flush=True)
signal.pause()
"""
TAKE = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
TESTS = Path(__file__).parents[1] / "ops"
PROGRAM = Path(__file__).parents[2] / "scripts" / "acceptance" / "sanitizer.py"


@pytest.fixture
def sanitizer(acceptance, monkeypatch, tmp_path):
    """In the tool's place a program that ends with a code, or not at all."""
    module = acceptance("sanitizer")
    programs = {"waits": "import signal; signal.pause()", "forks": HOLD.format(path=str(tmp_path / "held"))}
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


@pytest.mark.timing
def test_what_it_has_started_ends_with_a_file_that_takes_too_long(sanitizer, tmp_path, monkeypatch):
    monkeypatch.setattr(sanitizer, "LEAST_S", 0.1)
    assert sanitizer.checked("racecheck", "forks", 1.5, subprocess.DEVNULL)["status"] == "not done"
    subprocess.run([sys.executable, "-c", TAKE, tmp_path / "held"], check=True, timeout=60)


def test_what_it_has_started_ends_with_its_stage(tmp_path):
    """A program of that name says when it holds the lock; then the stage is ended."""
    (tmp_path / "held").touch()
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\n" + HOLD.format(path=str(tmp_path / "held")))
    tool.chmod(0o755)
    given = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PATH": str(tmp_path)}}
    with subprocess.Popen([sys.executable, PROGRAM, tmp_path], start_new_session=True, **given) as stage:
        assert stage.stdout.readline() == "held\n"
        os.killpg(stage.pid, signal.SIGTERM)
        assert stage.wait(60) == 1
    subprocess.run([sys.executable, "-c", TAKE, tmp_path / "held"], check=True, timeout=60)


def test_what_is_being_started_ends_with_its_stage(acceptance, monkeypatch):
    """SIGTERM comes while the program is there, and its caller does not know it yet."""
    module, started = acceptance("processes"), []

    def interrupted(*arguments, **given):
        started.append(subprocess_popen(*arguments, **given))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    subprocess_popen = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with pytest.raises(SystemExit):
            module.ended([sys.executable, "-c", "import signal; signal.pause()"], 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].returncode is not None


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
