"""A writer is killed, at every step it takes and at random instants: a good checkpoint is always there."""

import datetime
import os
import random
import subprocess
import sys
from pathlib import Path

import ringtrain
from ringtrain.storage.files import PARTIAL
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder

NOW = datetime.datetime(2026, 1, 31)
PROGRAM = Path(__file__).with_name("saves_until_killed.py")


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
    folders = [RunFolder(str(tmp_path / str(step))) for step in range(1, len(statuses) + 1)]
    iterations, lefts = zip(*(check_and_resume(folder, make, equal) for folder in folders), strict=True)
    assert list(iterations) == sorted(iterations)
    assert set(iterations) == {1, 2, 3}
    assert True in lefts


def test_killed_at_any_instant(tmp_path, make, equal):
    folder = create_run_folder(str(tmp_path), "mlp", NOW, resume=False)
    draw = random.Random(3)
    for _ in range(5):
        with start(folder.path) as writer:
            writer.stdout.read(draw.randrange(1, 60))
            writer.kill()
        check_and_resume(folder, make, equal)
