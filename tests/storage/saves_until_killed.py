"""A program for test_storage_killed: saves checkpoints into a run's folder, and is killed doing so.

usage: saves_until_killed.py FOLDER

For each event a copy of this process, in a folder FOLDER/NUMBER of its own, kills itself before that event; the status
of each copy is printed, until one survives.

Whatever Python does with a file it announces as an audit event.
"""

import datetime
import os
import signal
import sys
import traceback
from pathlib import Path

from conftest import make_checkpoint

from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder

DEEDS = ("open", "os.rename", "os.link", "os.remove")


def save(folder: RunFolder, step: int) -> None:
    """Save three checkpoints; end before an event of all but the first one: that of the number ``step``."""
    events = 0

    def watch(event, arguments):
        nonlocal events
        if event in DEEDS:
            events += 1
            if events == step:
                os.kill(os.getpid(), signal.SIGKILL)

    folder.save(make_checkpoint(1), keep=2, is_best=True)
    sys.addaudithook(watch)
    for iteration in (2, 3):
        folder.save(make_checkpoint(iteration), keep=1, is_best=iteration % 2 == 1)


def in_a_copy(action) -> int:
    """The exit status of a copy of this process that does it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def killed_at_each_step(path: Path) -> None:
    step, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        step += 1
        folder = create_run_folder(str(path / str(step)), "mlp", datetime.datetime(2026, 1, 31), resume=False)
        status = in_a_copy(lambda folder=folder, step=step: save(folder, step))
        print(status, flush=True)


killed_at_each_step(Path(sys.argv[1]))
