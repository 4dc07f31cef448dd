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
from ringtrain.storage.run_folder.run_folder import create

NOW = datetime.datetime(2026, 1, 31)
PROGRAM = Path(__file__).with_name("saves_until_killed.py")
NEVER = 1000


@pytest.fixture
def folder(tmp_path):
    return create(str(tmp_path), "mlp", NOW, resume=False)


def start(folder, step):
    paths = [str(Path(ringtrain.__file__).parents[1]), str(PROGRAM.parent)]
    return subprocess.Popen(
        [sys.executable, PROGRAM, folder.path, str(step)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def check_and_resume(folder, make, equal):
    """What is there loads, and a resumed run finds a clean folder. Returns whether the writer had left anything."""
    found = folder.latest()
    assert found.skipped == ()
    assert equal(found.checkpoint, make(found.checkpoint.iteration))
    left = any(folder.checkpoints.glob(f"*{PARTIAL}"))
    resumed = create(str(folder.path), "mlp", NOW, resume=True)
    resumed.claim(resume=True)
    resumed.supersede(found.checkpoint.iteration)
    resumed.release()
    assert not any(folder.checkpoints.glob(f"*{PARTIAL}"))
    return found.checkpoint.iteration, left


def test_killed_before_each_thing_it_does(tmp_path, make, equal):
    whole = create(str(tmp_path / "whole"), "mlp", NOW, resume=False)
    with start(whole, NEVER) as writer:
        steps = int(writer.stdout.read())
    assert steps >= 9
    iterations, lefts = [], []
    for step in range(1, steps + 1):
        folder = create(str(tmp_path / str(step)), "mlp", NOW, resume=False)
        with start(folder, step) as writer:
            assert writer.wait() == -9
        iteration, left = check_and_resume(folder, make, equal)
        iterations.append(iteration)
        lefts.append(left)
    assert iterations == sorted(iterations)
    assert set(iterations) == {1, 2, 3}
    assert True in lefts


def test_killed_at_any_instant(folder, make, equal):
    draw = random.Random(3)
    for _ in range(5):
        with start(folder, 0) as writer:
            writer.stdout.read(draw.randrange(1, 60))
            writer.kill()
        check_and_resume(folder, make, equal)
