"""A writer is killed at every step it takes: a good checkpoint is always there."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import ringtrain
from ringtrain.storage.files import PARTIAL
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder

NOW = datetime.datetime(2026, 1, 31)
PROGRAM = Path(__file__).with_name("saves_until_killed.py")


def check_and_resume(folder, make, equal):
    """What is there loads, and a resumed run finds a clean folder. Returns whether the writer had left anything."""
    latest = folder.latest()
    assert latest.skipped == ()
    assert equal(latest.checkpoint, make(latest.checkpoint.iteration))
    left = any(folder.checkpoints.glob(f"*{PARTIAL}"))
    resumed = create_run_folder(str(folder.path), "mlp", NOW, resume=True)
    resumed.claim(resume=True)
    resumed.supersede(latest.checkpoint.iteration)
    resumed.release()
    assert not any(folder.checkpoints.glob(f"*{PARTIAL}"))
    return latest.checkpoint.iteration, left


def test_killed_before_each_thing_it_does(tmp_path, make, equal):
    path = os.pathsep.join([str(Path(ringtrain.__file__).parents[1]), str(PROGRAM.parent)])
    command = [sys.executable, PROGRAM, tmp_path]
    done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    *statuses, end = map(int, done.stdout.split())
    assert set(statuses) == {-9} and end == 0
    assert len(statuses) >= 9
    folders = [RunFolder(str(tmp_path / str(step))) for step in range(1, len(statuses) + 1)]
    iterations, lefts = zip(*(check_and_resume(folder, make, equal) for folder in folders), strict=True)
    assert list(iterations) == sorted(iterations)
    assert set(iterations) == {1, 2, 3}
    assert True in lefts
