"""Communicators on all ranks of a loopback world."""

from ringtrain import Communicator
from tests.loopback.world import LoopbackWorld


def together(size, function, nodes=1, shares=True, **options):
    """``function(communicator)`` on every rank; the values."""

    def body(transport):
        with Communicator(transport, deadline_s=20.0, **options) as communicator:
            return function(communicator)

    return LoopbackWorld(size, nodes, shares=shares).run(body)
