"""A writer is killed, at every step it takes and at random instants: a good checkpoint is always there."""

import datetime
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import ringtrain
from ringtrain.storage.files import PARTIAL
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder

NOW = datetime.datetime(2026, 1, 31)
PROGRAM = Path(__file__).with_name("saves_until_killed.py")


@pytest.fixture
def folder(tmp_path):
    return create_run_folder(str(tmp_path), "mlp", NOW, resume=False)


def start(*arguments):
    paths = [str(Path(ringtrain.__file__).parents[1]), str(PROGRAM.parent)]
    return subprocess.Popen(
        [sys.executable, PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


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
    with start(tmp_path, "steps") as writer:
        *statuses, end = map(int, writer.stdout.read().split())
    assert set(statuses) == {-9} and end == 0
    assert len(statuses) >= 9
    iterations, lefts = [], []
    for step in range(1, len(statuses) + 1):
        iteration, left = check_and_resume(RunFolder(str(tmp_path / str(step))), make, equal)
        iterations.append(iteration)
        lefts.append(left)
    assert iterations == sorted(iterations)
    assert set(iterations) == {1, 2, 3}
    assert True in lefts


def test_killed_at_any_instant(folder, make, equal):
    draw = random.Random(3)
    for _ in range(5):
        with start(folder.path) as writer:
            writer.stdout.read(draw.randrange(1, 60))
            writer.kill()
        check_and_resume(folder, make, equal)
