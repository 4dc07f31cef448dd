"""`ringtrain`, of which ranks kill themselves: dies.py RANK=PLACE:N[,…] ARGUMENTS…, where a rank comes to a place for
the Nth time. ``stop`` in place of ``=`` has it stopped instead; ``fail``, raise an error; ``told``, told to stop.
``soon`` has it die N milliseconds after it comes there first, wherever it is then."""

import os
import pkgutil
import re
import signal
import sys
import threading
import time
from functools import partial
from unittest import mock

from ringtrain.cli.main import run

PLACES = {
    "connecting": "ringtrain.transport.mpi.messages.Messages.__init__",
    "opening": "ringtrain.train.start.open_run.read_data",
    "iteration": "ringtrain.train.step.worker.Worker.iterate",
    "update": "ringtrain.exchange.buckets.deferred_update.BucketUpdater.finish",
    "accounting": "ringtrain.train.run.run.Run._account",
    "evaluation": "ringtrain.train.evaluate.Evaluator.score",
    "saving": "ringtrain.storage.run_folder.run_folder.RunFolder.save",
    "ending": "ringtrain.train.run.run.Run._end",
    "shrunk": "ringtrain.transport.mpi.ulfm_recovery._gathered",
    "calming": "ringtrain.transport.mpi.ulfm_recovery._calm",
    "entering": "ringtrain.train.start.recover.ElasticRun._enter",
    "closing": "ringtrain.exchange.buckets.reducer.Reducers.close",
    "parting": "ringtrain.train.start.recover.ElasticRun._part",
    "meeting": "ringtrain.cli.world._barrier",
}


SIGNALS = {"=": signal.SIGKILL, "stop": signal.SIGSTOP, "told": signal.SIGUSR1}


def end_soon(milliseconds: int):
    time.sleep(milliseconds / 1e3)
    end("=")


def end(verb: str):
    if verb == "fail":
        raise ZeroDivisionError("of one rank")
    os.kill(os.getpid(), SIGNALS[verb])


def wrapped(inside, verb, place, nth):
    """The function at that place, which ends this process when it is called for the nth time."""
    if verb == "soon":
        action, nth = threading.Thread(target=end_soon, args=[nth], daemon=True).start, 1
    else:
        action = partial(end, verb)
    owner, _, name = PLACES[place].rpartition(".")
    holder = pkgutil.resolve_name(owner)
    plain, calls = getattr(holder, name), iter(range(1, 1 << 30))

    def call(*arguments, **named):
        if next(calls) == nth:
            action()
        return plain(*arguments, **named)

    inside.append(mock.patch.object(holder, name, call))


if __name__ == "__main__":
    spec, sys.argv = sys.argv[1], ["ringtrain", *sys.argv[2:]]
    patches: list = []
    for rank, verb, place, nth in re.findall(r"(\d+)(=|stop|fail|told|soon)(\w+):(\d+)", spec):
        if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
            wrapped(patches, verb, place, int(nth))
    for patch in patches:
        patch.start()
    sys.exit(run(sys.argv[1:]))
