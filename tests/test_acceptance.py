"""What the acceptance on a GPU makes of its stages, without one: its limits, its table, and when it says no."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "scripts" / "acceptance"


@pytest.fixture(scope="module")
def room():
    """The modules of scripts/acceptance by name; they are no package."""
    found = {}
    for name in ("report", "stages", "main"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        found[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    yield found
    for name in found:
        del sys.modules[name]


def stage(room, program, read=lambda folder: ([], ""), seconds=30):
    command = [sys.executable, "-c", program]
    return room["stages"].Stage("a", "A stage", "much", seconds, lambda folder: command, read)


@pytest.mark.parametrize(
    ("program", "seconds", "short", "status", "said"),
    [
        ("pass", 30, "", "passed", ""),
        ("pass", 30, "too slow", "fell short", "too slow"),
        ("print('oh'); raise SystemExit(3)", 30, "", "failed", "exit code 3.  The end of its output: oh"),
        ("import signal; signal.pause()", 0.5, "", "failed", "not done after 0 s. "),
    ],
)
def test_a_stage_ends_as_one_of_these(room, tmp_path, program, seconds, short, status, said):
    outcome = room["main"].run(stage(room, program, lambda folder: ([], short), seconds), tmp_path, 100)
    assert (outcome.status, outcome.said) == (status, said)


def test_what_a_machine_cannot_do_is_left_out(room, tmp_path):
    unable = replace(stage(room, "raise SystemExit('Device not supported')"), unable="Device not supported")
    outcome = room["main"].run(unable, tmp_path, 100)
    assert (outcome.status, outcome.said) == (
        "left out", "exit code 1.  The end of its output: Device not supported"
    )  # fmt: skip


HOLD = """
import fcntl, os, signal
held = open({path!r}, "w")
fcntl.flock(held, fcntl.LOCK_EX)
os.fork()
signal.pause()
"""
TAKE = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


def test_what_a_stage_has_started_ends_with_it(room, tmp_path):
    """A lock is free when the last process that inherited it is gone."""
    path = tmp_path / "held"
    assert room["main"].run(stage(room, HOLD.format(path=str(path)), seconds=1.5), tmp_path, 100).status == "failed"
    subprocess.run([sys.executable, "-c", TAKE, path], check=True, timeout=60)


def test_what_there_is_no_time_for_is_told(room, tmp_path):
    outcome = room["main"].run(stage(room, "pass"), tmp_path, 1)
    assert (outcome.status, outcome.said[:16]) == ("left out", "no time was left")


def test_the_report(room, tmp_path):
    rows = [{"kernel": "add", "ms": 1.25}, {"kernel": "a|b", "launches": 12345.6}]
    outcome = room["main"].run(stage(room, "pass", lambda folder: (rows, "")), tmp_path, 100)
    room["main"].write(tmp_path, {"gpu": "Some GPU", "driver": "1.2", "mpi": None}, [outcome])
    told = (tmp_path / "report.md").read_text()
    assert told.startswith("# Acceptance on Some GPU\n\n- gpu: Some GPU\n- driver: 1.2\n\n| stage | wanted | outcome |")
    assert "| kernel | ms | launches |\n| --- | --- | --- |\n| add | 1.25 | – |\n| a\\|b | – | 12,346 |" in told
    assert json.loads((tmp_path / "report.json").read_text())["stages"][0]["rows"] == rows


def test_losses_that_are_apart_fall_short(room, tmp_path):
    near, far = ({"what": what, "ranks": 2, "largest difference": d} for what, d in (("near", 9e-5), ("far", 2e-4)))
    (tmp_path / "rows.json").write_text(json.dumps([near, far]))
    assert room["stages"].read_losses(tmp_path)[1] == "losses are further apart than 1e-4: far at 2 ranks"


def test_what_is_slower_than_pytorch_falls_short(room, tmp_path):
    about = {"batch": 8, "precision": "tf32", "images_per_s": {"ringtrain": 2.0, "eager": 1.0}}
    rows = [{"model": name, **about, "ratio": {"eager": ratio}} for name, ratio in (("a", 1.6), ("b", 1.4))]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    read, short = room["stages"].read_ratios(1.5)(tmp_path)
    assert short == "below 1.5 times eager: b" and read[0]["ringtrain, images/s"] == 2.0


def test_an_all_reduce_that_is_not_fast_enough_falls_short(room, tmp_path):
    def row(algorithm, seconds, nbytes):
        return {"ranks": 2, "algorithm": algorithm, "bytes": nbytes, "status": "ok", "median_s": seconds, "wrong": 0}

    large, small = 1 << 21, 1 << 20
    rows = [row("mpi", 6.0, small), row("mapped", 1.0, small), row("mpi", 4.0, large), row("mapped", 1.0, large)]
    (tmp_path / "2-ranks.json").write_text(json.dumps({"rows": rows}))
    refused = {"ranks": 4, "algorithm": "mapped", "bytes": small, "status": "refused", "reason": "not here"}
    (tmp_path / "4-ranks.json").write_text(json.dumps({"rows": [refused]}))
    read, short = room["stages"].read_allreduce(tmp_path)
    told = "mapped is not 5 times as fast as through the host: 2 MiB at 2 ranks, nothing measured at 4 ranks"
    assert short == told and read[-1]["reason"] == "not here"
    assert [each["× mpi through the host"] for each in read[:-1]] == [1.0, 6.0, 1.0, 4.0]


def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, FOLDER / "main.py", "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu-acceptance: there is no GPU here")


def test_a_stage_that_is_not_there(tmp_path):
    done = subprocess.run([sys.executable, FOLDER / "main.py", "speed"], capture_output=True, text=True)
    assert done.returncode == 2 and "no stage is called speed: doctor, losses, resnet50" in done.stderr
