"""A program for test_checkpoint_killed: saves checkpoints into a run's folder, and is killed doing so.

usage: saves_until_killed.py FOLDER STEP

Whatever Python does with a file it announces as an audit event. At event number STEP the program kills itself, before
the deed is done; STEP 0 is never: then it saves without end and tells of every event by a byte on its output.
"""

import os
import signal
import sys

from conftest import make_checkpoint

from ringtrain.storage.run_folder.run_folder import RunFolder

DEEDS = ("open", "os.rename", "os.link", "os.remove")


def main(folder: RunFolder, step: int) -> None:
    events = 0

    def watch(event, arguments):
        nonlocal events
        if event not in DEEDS:
            return
        events += 1
        if events == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 0:
            os.write(1, b".")

    folder.save(make_checkpoint(1), keep=2, is_best=True)
    sys.addaudithook(watch)
    for iteration in range(2, 4 if step else 1 << 30):
        folder.save(make_checkpoint(iteration), keep=1, is_best=iteration % 2 == 1)
    print(events)


main(RunFolder(sys.argv[1]), int(sys.argv[2]))
