"""The MPI's own collectives, non-blocking.

Counts of many MPIs are 32-bit. A message longer than the limit, or the rows of one collective together, become one
element of a type of their own, which has blocks of a fixed length and a rest.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from mpi4py import MPI

from ringtrain.transport import native_call
from ringtrain.transport.base import TestedHandle
from ringtrain.transport.buffers import message_bounds
from ringtrain.transport.mpi.arrivals import Arrivals
from ringtrain.transport.mpi.requests import IN_FLIGHT, naming_peers
from ringtrain.transport.native_call import NativeCall, starts
from ringtrain.transport.waiting import Patience, peers

OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
BLOCK_BYTES = 1 << 20  # of a long type, at most


class NativeHandle(TestedHandle):
    """One call, in flight once started. ``limit``: the most bytes that are counted one by one; ``names``: the ranks of
    the peers for messages about them; ``number``: of the call, the same on all ranks.
    """

    def __init__(
        self, comm: MPI.Intracomm, call: NativeCall, limit: int, patience: Patience, names: Sequence[int], number: int
    ):
        self._comm, self._call, self._limit, self.patience = comm, call.flat(), limit, patience
        self._names, self._arrivals = names, Arrivals(comm, number)
        self._requests: list[MPI.Request] = []

    def start(self) -> None:
        with naming_peers(self._doing(), self._comm):
            self._requests = START[self._call.kind](self._comm, self._call, self._limit)
        IN_FLIGHT.add(self)

    def test(self) -> bool:
        with naming_peers(self._doing(), self._comm):
            done = MPI.Request.Testall(self._requests) and self._arrivals.test()
        if done:
            IN_FLIGHT.discard(self)
        return done

    def _doing(self) -> str:
        return f"in the MPI's {self._call.kind}"

    def awaited(self) -> str:
        others = peers(name for rank, name in enumerate(self._names) if rank != self._comm.rank)
        return f"{others} to join the {self._call.kind} (the MPI does not say which of them is late)"


def _rows(comm: MPI.Intracomm, call: NativeCall, limit: int) -> list[MPI.Request]:
    """Start a collective of a row of each rank, or of the root."""
    at_root = comm.rank == call.root
    row_bytes = call.send.size if call.kind in (native_call.ALL_GATHER, native_call.GATHER) else call.recv.size
    with _row_type(row_bytes, limit) as (count, row):
        send, recv = [call.send, count, row], [call.recv, count, row]
        match call.kind:
            case native_call.BROADCAST:
                return [comm.Ibcast(recv, call.root)]
            case native_call.ALL_GATHER:
                return [comm.Iallgather(send, recv)]
            case native_call.GATHER:
                return [comm.Igather(send, recv if at_root else None, call.root)]
            case _:
                return [comm.Iscatter(send if at_root else None, recv, call.root)]


def _all_to_all(comm: MPI.Intracomm, call: NativeCall, limit: int) -> list[MPI.Request]:
    sent, received = starts(call.send_counts), starts(call.recv_counts)
    if max(sent[-1], received[-1]) <= limit:
        out = [call.send, call.send_counts, sent[:-1], MPI.BYTE]
        return [comm.Ialltoallv(out, [call.recv, call.recv_counts, received[:-1], MPI.BYTE])]
    ends = [[_long_type(a, b) for a, b in pairwise(bounds)] for bounds in (sent, received)]
    each, at = [1] * comm.size, [0] * comm.size  # the types hold the places, which may be far
    try:
        return [comm.Ialltoallw([call.send, each, at, ends[0]], [call.recv, each, at, ends[1]])]
    finally:
        for datatype in (*ends[0], *ends[1]):
            datatype.Free()


def _all_reduce(comm: MPI.Intracomm, call: NativeCall, limit: int) -> list[MPI.Request]:
    in_place, op = call.send is call.recv, OPS[call.op]
    return [
        comm.Iallreduce(MPI.IN_PLACE if in_place else call.send[a:b], call.recv[a:b], op)
        for a, b in message_bounds(call.recv.size, max(limit // call.recv.itemsize, 1))
    ]


def _reduce(comm: MPI.Intracomm, call: NativeCall, limit: int) -> list[MPI.Request]:
    bounds = list(message_bounds(call.send.size, max(limit // call.send.itemsize, 1)))
    into = [call.recv[a:b] if comm.rank == call.root else None for a, b in bounds]
    return [comm.Ireduce(call.send[a:b], into[i], OPS[call.op], call.root) for i, (a, b) in enumerate(bounds)]


def _reduce_scatter(comm: MPI.Intracomm, call: NativeCall, limit: int) -> list[MPI.Request]:
    return [comm.Ireduce_scatter_block(call.send, call.recv, OPS[call.op])]


START: dict[str, Callable[[MPI.Intracomm, NativeCall, int], list[MPI.Request]]] = {
    native_call.BROADCAST: _rows,
    native_call.ALL_GATHER: _rows,
    native_call.GATHER: _rows,
    native_call.SCATTER: _rows,
    native_call.ALL_TO_ALL: _all_to_all,
    native_call.ALL_REDUCE: _all_reduce,
    native_call.REDUCE_SCATTER: _reduce_scatter,
    native_call.REDUCE: _reduce,
}
# The blocking functions, of calls with flat arrays.
RUN: dict[str, Callable[[MPI.Intracomm, NativeCall], None]] = {
    native_call.BROADCAST: lambda comm, call: comm.Bcast(call.recv, call.root),
    native_call.ALL_GATHER: lambda comm, call: comm.Allgather(call.send, call.recv),
    native_call.ALL_TO_ALL: lambda comm, call: comm.Alltoall(call.send, call.recv),
    native_call.REDUCE_SCATTER: lambda comm, call: comm.Reduce_scatter_block(call.send, call.recv, OPS[call.op]),
    native_call.REDUCE: lambda comm, call: comm.Reduce(
        call.send, call.recv if comm.rank == call.root else None, OPS[call.op], call.root
    ),
}


@contextmanager
def _row_type(nbytes: int, limit: int) -> Iterator[tuple[int, MPI.Datatype]]:
    """Yield the number and the type of elements that a row of so many bytes has. The MPI keeps a type that is in use
    until the call is done.
    """
    if nbytes <= limit:
        yield nbytes, MPI.BYTE
        return
    datatype = _long_type(0, nbytes)
    try:
        yield 1, datatype
    finally:
        datatype.Free()


def _long_type(start: int, stop: int) -> MPI.Datatype:
    """Return a type of the bytes ``start:stop`` of an array; its extent is their length."""
    blocks, rest = divmod(stop - start, BLOCK_BYTES)
    block = MPI.BYTE.Create_contiguous(BLOCK_BYTES)
    at = [start, start + blocks * BLOCK_BYTES]
    datatype = MPI.Datatype.Create_struct([blocks, rest], at, [block, MPI.BYTE]).Commit()
    block.Free()
    return datatype
