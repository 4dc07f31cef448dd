"""A command of ringtrain in a process that hangs somewhere, as a file system or an MPI makes it hang; or goes wrong.

hangs.py WHERE RANK ARGUMENTS...: rank RANK, as the launcher counts, hangs

    starting  the MPI: within a library that keeps the interpreter
    saving    a checkpoint: in a call of the system
    asking    in the 4th iteration, likewise
    flipping  not at all: a bit of its weights changes when the 3rd iteration begins
"""

import ctypes
import os
import sys

from ringtrain.cli import main
from ringtrain.transport.launch_environment import read_launch


def keep_the_interpreter(*_, **__):
    ctypes.PyDLL(None).pause()


def give_it_away(*_, **__):
    os.read(os.pipe()[0], 1)


def starting():
    from ringtrain.transport import world

    world.connect = keep_the_interpreter


def saving():
    from ringtrain.storage.checkpoint import store

    store.save_checkpoint = give_it_away


def asking():
    from ringtrain.train.step import worker

    run, count = worker.Worker.run, iter(range(20))

    def counted(self, instruction):
        run(self, instruction) if next(count, None) is not None else give_it_away()

    worker.Worker.run = counted


def flipping():
    from ringtrain.train.start import open_run

    assemble = open_run.assemble

    def assembled(*arguments):
        run = assemble(*arguments)
        bits = run.arena.weights[5:6].view("uint32")

        def flip(iteration):
            bits[0] ^= iteration == 2

        run.worker.hooks.before_iteration = flip
        return run

    open_run.assemble = assembled


if __name__ == "__main__":
    where, rank, *arguments = sys.argv[1:]
    if read_launch(os.environ).rank == int(rank):
        globals()[where]()
    sys.exit(main.run(arguments))
