"""Counters in a window of MPI: additions reach rank 0's memory by the MPI's one-sided operations."""

from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from ringtrain.errors import TransportError
from ringtrain.transport.services import Counters

ITEM_BYTES = 8


@contextmanager
def _telling():
    try:
        yield
    except MPI.Exception as error:
        raise TransportError(f"MPI failed while adding to rank 0's numbers: {error.Get_error_string()}") from error


class RmaCounters(Counters):
    """Counters in the memory of rank 0 of ``comm``. Collective to make."""

    def __init__(self, comm, count: int):
        self._comm, self._count = comm, count
        nbytes = count * ITEM_BYTES if comm.rank == 0 else 0
        with _telling():
            self._window = MPI.Win.Allocate(nbytes, ITEM_BYTES, comm=comm)
            self._window.Lock_all()
        self._old = np.zeros(1)
        self.clear()

    def take(self, index: int, amount: float) -> float:
        with _telling():
            self._window.Fetch_and_op(np.array([amount], np.float64), self._old, 0, index, MPI.SUM)
            self._window.Flush(0)
        return float(self._old[0])

    def add(self, start: int, values: np.ndarray) -> None:
        with _telling():
            self._window.Accumulate([values, MPI.DOUBLE], 0, target=start, op=MPI.SUM)
            self._window.Flush(0)

    def read(self) -> np.ndarray:
        numbers = np.zeros(self._count)
        with _telling():
            self._window.Get([numbers, MPI.DOUBLE], 0)
            self._window.Flush(0)
        return numbers

    def clear(self) -> None:
        self._comm.Barrier()
        if self._comm.rank == 0:
            self._window.Accumulate([np.zeros(self._count), MPI.DOUBLE], 0, op=MPI.REPLACE)
            self._window.Flush(0)
        self._comm.Barrier()

    def free(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
