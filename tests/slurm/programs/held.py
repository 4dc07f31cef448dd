"""ringtrain, of which a run stays in the iteration that the file ``held`` names until it is told to stop, or the file
is gone: what is to interrupt it finds it there, however fast the machine is. Each rank that has come there leaves a
file ``held-by-RANK``. In the folder where the job was submitted."""

import sys
import threading
from functools import wraps
from pathlib import Path

from ringtrain.cli import main
from ringtrain.train.start import open_run

HELD, LOOK_S = Path("held"), 0.05


def holding(assemble):
    @wraps(assemble)
    def assembled(config, model, data, transport, ops, stop, *more):
        run = assemble(config, model, data, transport, ops, stop, *more)
        before = run.worker.hooks.before_iteration

        def hold(iteration):
            before(iteration)
            if HELD.exists() and iteration == int(HELD.read_text()):
                Path(f"held-by-{transport.rank}").touch()
                while HELD.exists() and not stop():
                    threading.Event().wait(LOOK_S)

        run.worker.hooks.before_iteration = hold
        return run

    return assembled


if __name__ == "__main__":
    open_run.assemble = holding(open_run.assemble)
    sys.exit(main.run(sys.argv[1:]))
