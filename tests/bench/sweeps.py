"""Quick sweeps of a world in one process, and rows of theirs."""

from dataclasses import replace

import numpy as np

from ringtrain.api.communicator import Communicator
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.sweep import Result, Sweep, sweep
from tests.loopback.world import LoopbackWorld

QUICK = Protocol(repeats=3, warm_up=1)


def swept(size=2, nodes=1, watcher=None, buffers=None, **asked) -> Result:
    """The result of rank 0, whose rows are those of all ranks. ``buffers(transport)``: in place of the host's."""
    asked = Sweep(**{"sizes": (64, 4096), "protocol": QUICK, **asked})

    def body(transport):
        spans = buffers and buffers(transport)
        communicator = Communicator(transport) if asked.collective != "all-reduce" else None
        whole = replace(asked, communicator=communicator)
        return sweep(spans.transport if spans else transport, whole, None if transport.rank else watcher, spans)

    results = LoopbackWorld(size, nodes).run(body)
    assert all(result.rows == results[0].rows for result in results)
    return results[0]


def spoil(span, element):
    """Flip a bit in the most significant byte of one element: the first unset bit of an exponent, so that the number
    becomes huge and no rounding explains it.
    """
    most_significant = span[element : element + 1].view(np.uint8)[-1:]
    most_significant ^= 0x20 if most_significant[0] & 0x40 else 0x40


def by(rows, **wanted):
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]
