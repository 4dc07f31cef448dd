"""A command whose last rank has a defect while the others wait for it in a barrier."""

import sys

from ringtrain.cli.world import in_world


def action(transport):
    if transport.rank == transport.size - 1:
        raise ZeroDivisionError("a defect, for the test")
    transport.barrier()


sys.exit(in_world(action))
