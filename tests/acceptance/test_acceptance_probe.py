"""The probe: a process for each family of tests, and what is told of each as it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.acceptance.conftest import FOLDER, HOLD, ROOT, take

PROGRAM = FOLDER / "probe.py"
HEAD = "========= COMPUTE-SANITIZER\n"
TESTS = {
    "passes": "def test_one(): pass\ndef test_two(): pass\n",
    "fails": "def test_one(): assert 1 + 1 == 3\n",
    "dies": "import os\ndef test_one(): os.kill(os.getpid(), 4)\n",
    "does not end": "import signal\nsignal.signal(15, signal.SIG_IGN)\ndef test_one(): signal.pause()\n",
    "has none": "",
}


@pytest.fixture
def probe(acceptance, monkeypatch, tmp_path):
    """Of families whose tests pass, fail, end by a signal, or do not end."""
    module = acceptance("probe")
    for name, text in TESTS.items():
        text = f"import pytest\npytestmark = pytest.mark.device\n{text}"
        (tmp_path / f"test_{name.replace(' ', '_')}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\nmarkers = device\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "KINDS", {"dies": "wgmma", "passes": "cuDNN"})
    return module


def families(*names):
    return {name: ([f"test_{name.replace(' ', '_')}.py"], "") for name in names}


@pytest.fixture(autouse=True)
def handler():
    """A probe ignores SIGTERM at its end, as its program does nothing after it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_family_that_ends_by_a_signal_is_told_and_the_others_go_on(probe, tmp_path, capsys):
    rows = probe.run(families("passes", "dies", "fails", "has none"), tmp_path, 120, 2)
    assert {name: row["status"] for name, row in rows.items()} == {
        "passes": "passed", "dies": "ended by signal 4", "fails": "failed", "has none": "failed"
    }  # fmt: skip
    assert rows["passes"]["passed"] == 2 and rows["fails"]["first"] == "assert (1 + 1) == 3"
    lines = {line[:28].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["dies"].split()[1:5] == ["ended", "by", "signal", "4"] and "2 passed" in lines["passes"]
    report = json.loads((tmp_path / "probe.json").read_text())
    assert report["families"] == rows and report["leave_out"] == ["wgmma"]


@pytest.mark.timing
def test_what_is_not_done_in_time_is_told(probe, tmp_path):
    rows = probe.run(families("does not end", "dies"), tmp_path, 0.5, 1)
    assert [row["status"] for row in rows.values()] == ["not done", "not done"]
    report = json.loads((tmp_path / "probe.json").read_text())
    assert report["families"].keys() == rows.keys() and report["leave_out"] == []  # which may yet be right


@pytest.mark.parametrize(
    ("code", "text", "status", "first"),
    [
        (9, f"{HEAD}========= Invalid __global__ read\n1 passed", "errors found", "Invalid __global__ read"),
        (1, f"{HEAD}========= Error: Device not supported", "failed", "Error: Device not supported"),
        (2, "ERROR tests/a.py - ImportError\n1 error in 1s", "failed", "ERROR tests/a.py - ImportError"),
        (-11, "", "ended by signal 11", ""),
        (None, "..", "not done", ".."),
        (0, "E   of a test that is to fail\n3 passed", "passed", ""),
    ],
)  # fmt: skip
def test_what_a_family_ends_as(acceptance, code, text, status, first):
    row = acceptance("probe").row_of(code, text)
    assert (row["status"], row["first"]) == (status, first)


def test_every_test_of_the_device_is_in_one_family(acceptance):
    files = [file for files in acceptance("probe").FAMILIES.values() for file in files]
    mark = re.compile(r"mark\.device\b|\b(BACKENDS|COMPILED|ON_DEVICE)\b|cuda_support import [^)]*\bon_device\b")
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if mark.search(path.read_text())]
    assert sorted(files) == sorted(str(path.relative_to(ROOT)) for path in marked if path != Path(__file__))


def test_what_failed_is_looked_at_by_the_tools(acceptance, tmp_path):
    probe = acceptance("probe")
    options = SimpleNamespace(failed=tmp_path / "before.json", families=None, tool=["memcheck", "racecheck"])
    with pytest.raises(SystemExit, match="no probe was made on this machine"):
        probe.chosen(options)
    rows = {"a": {"status": "passed", "files": ["a.py"]}, "b": {"status": "ended by signal 6", "files": ["b.py"]}}
    options.failed.write_text(json.dumps({"families": rows}))
    assert probe.chosen(options) == {"memcheck b": (["b.py"], "memcheck"), "racecheck b": (["b.py"], "racecheck")}
    rows["b"]["status"] = "passed"
    options.failed.write_text(json.dumps({"families": rows}))
    assert probe.chosen(options) == {}


def test_a_tool_that_is_not_there_is_told(tmp_path):
    command = [sys.executable, PROGRAM, tmp_path, "--tool", "memcheck"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": "/nowhere"})
    assert (done.returncode, done.stderr) == (
        1, "probe: compute-sanitizer cannot be started: No such file or directory\n"
    )  # fmt: skip


def test_what_it_has_started_ends_with_its_stage(tmp_path):
    """In the place of the tool a program that holds a lock, and says so; then the stage is ended."""
    (tmp_path / "held").touch()
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\n" + HOLD.format(path=str(tmp_path / "held"), fifo=str(tmp_path / "told")))
    tool.chmod(0o755)
    options = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PATH": str(tmp_path)}}
    command = [sys.executable, PROGRAM, tmp_path, "--tool", "memcheck", "--families", "normalisation"]
    fifo = tmp_path / "told"
    os.mkfifo(fifo)
    with subprocess.Popen(command, start_new_session=True, **options) as stage:
        with open(fifo) as said:  # a FIFO
            assert said.read() == "held"
        os.killpg(stage.pid, signal.SIGTERM)
        assert stage.stdout.read().split()[:4] == ["memcheck", "normalisation", "not", "done"]
        assert stage.wait(60) == 1
    take(tmp_path / "held")


def test_what_is_being_started_ends_with_its_stage(acceptance, monkeypatch):
    """SIGTERM comes while the program is there, and its caller does not know it yet."""
    module, started = acceptance("processes"), []

    def interrupted(*arguments, **options):
        started.append(subprocess_popen(*arguments, **options))
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
