"""Communicators on all ranks of a loopback world."""

import inspect
from functools import wraps

from ringtrain import Communicator
from ringtrain.allreduce.machine import inspect_machine
from ringtrain.allreduce.tuning_table import Table, Tuning
from tests.loopback.world import LoopbackWorld


def together(size, function, nodes=1, shares=True, **options):
    """``function(communicator)`` on every rank; the values."""

    def body(transport):
        with Communicator(transport, deadline_s=20.0, **options) as communicator:
            return function(communicator)

    return LoopbackWorld(size, nodes, shares=shares).run(body)


def on_ranks(size=None, **options):
    """Run a test :func:`together`: its ``communicator`` is a rank's, and its other arguments are fixtures; the one of
    the name ``size`` counts where no number stands here."""

    def decorate(test):
        @wraps(test)
        def run(*instance, **fixtures):
            together(size or fixtures["size"], lambda each: test(*instance, communicator=each, **fixtures), **options)

        fixtures = [each for name, each in inspect.signature(test).parameters.items() if name != "communicator"]
        run.__signature__ = inspect.Signature(fixtures)
        return run

    return decorate


def tuning_file(path, *rows):
    """Write a file of these measurements on two ranks of this machine."""
    machine, layout = LoopbackWorld(2).run(inspect_machine)[0]
    table = Table(layout.ranks, layout.nodes, "then", rows, name=layout.name)
    path.write_text(Tuning(machine).with_table(table).text())
    return path
