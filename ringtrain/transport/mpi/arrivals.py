"""Shows that all ranks have come out of a collective, so that none died inside it.

A message of an MPI arrives, or its call fails. Its collectives make no such promise: where a rank dies in one, Open
MPI 5 may return success to a survivor, and memory that was never written. So, in a world in which a rank may die, a
result is used when messages have shown that every rank has come out of the collective.

Source: the dissemination barrier of D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization",
1988.
"""

import math
import os
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from ringtrain.transport.fault_tolerance import is_fault_tolerant
from ringtrain.transport.waiting import wait_for

TAG = 32_000  # and those after it; an exchange has lower ones
AT_ONCE = 700  # non-blocking collectives that are under way; more than there ever are
NOTHING = np.zeros(0, np.uint8)


class Arrivals:
    """A non-blocking barrier by messages: ``test()`` is true when all ranks have made it. Raises MPI.Exception after a
    death. Nothing is sent where the death of a rank ends all ranks.

    number: of the non-blocking collective before it, the same on all ranks; None after a blocking one
    """

    def __init__(self, comm: MPI.Intracomm, number: int | None = None):
        self._comm, self._tag = comm, TAG if number is None else TAG + 1 + number % AT_ONCE
        self._distances = _distances(comm.size if is_fault_tolerant(os.environ) else 1)
        self._requests: list[MPI.Request] = []

    def test(self) -> bool:
        while MPI.Request.Testall(self._requests):
            distance = next(self._distances, 0)
            if not distance:
                return True
            rank, size = self._comm.rank, self._comm.size
            self._requests = [
                self._comm.Isend(NOTHING, (rank + distance) % size, self._tag),
                self._comm.Irecv(NOTHING, (rank - distance) % size, self._tag),
            ]
        return False


def _distances(size: int) -> Iterator[int]:
    """Yield 1, 2, 4, … below ``size``: what a rank hears from so far away, others have told that one before."""
    return (1 << power for power in range((size - 1).bit_length()))


def check_arrivals(comm: MPI.Intracomm) -> None:
    """Return when all ranks of ``comm`` have come here. Raises MPI.Exception if one has died."""
    wait_for(Arrivals(comm).test, math.inf, lambda: "")
