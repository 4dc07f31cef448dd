"""Messages over MPI: persistent point-to-point requests, and the MPI's own collectives for the start of a
run.

Everything travels as bytes, on a communicator of our own, so that no message of another library is taken for
ours. Spans in device memory go to the MPI as they are, through the array's own interface: that needs an MPI
that was built for the device. An MPI error becomes a TransportError that names the peers it concerns.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from ringtrain.errors import TransportError
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.board import Rows
from ringtrain.transport.launcher import choose_local_ranks, number_nodes
from ringtrain.transport.memory import MESSAGE_BYTES, aligned_zeros, as_bytes, cut
from ringtrain.transport.node import gather_text, leaders, shared_window, split_by_node
from ringtrain.transport.relay import Relay, relayed
from ringtrain.transport.waiting import peers, wait_for

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}
ABORT_S = 10.0
OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


@contextmanager
def _told(what: Callable[[], str]):
    """Turn an MPI error into one that says what was being done, and with whom."""
    try:
        yield
    except MPI.Exception as error:
        raise TransportError(f"MPI failed while {what()}: {error.Get_error_string()}") from error


class PersistentHandle(Handle):
    """Prepared sends or receives: started all at once, tested all at once."""

    def __init__(self, requests: list, ranks: list[int], verb: str, tag: int):
        self._requests, self._ranks, self._verb, self._tag = requests, ranks, verb, tag
        self._active = False

    def start(self) -> None:
        with _told(self._waiting):
            MPI.Prequest.Startall(self._requests)
        self._active = bool(self._requests)

    def test(self) -> bool:
        if self._active:
            with _told(self._waiting):
                self._active = not MPI.Request.Testall(self._requests)
        return not self._active

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited)

    def free(self) -> None:
        for request in self._requests:
            request.Free()
        self._requests = []
        self._active = False

    def _awaited(self) -> str:
        return f"{peers(self._ranks)} to {self._verb} (tag {self._tag})"

    def _waiting(self) -> str:
        return f"waiting for {self._awaited()}"


class ReduceHandle(Handle):
    """The MPI's all-reduce of one span, in flight."""

    def __init__(self, comm, span):
        self._comm, self._span = comm, span
        self._request = MPI.REQUEST_NULL

    def start(self) -> None:
        with _told(lambda: "all-reducing"):
            self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._span, MPI.SUM)

    def test(self) -> bool:
        with _told(lambda: "all-reducing"):
            return self._request.Test()

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, lambda: "all ranks to all-reduce")


class Messages(Transport):
    """This rank's end of a communicator. Collective to make. ``claims`` are the launcher's words about local
    ranks (:func:`local_claims`); ``message_bytes`` is where messages are cut."""

    def __init__(self, comm, claims: dict, allocate=aligned_zeros, message_bytes: int = MESSAGE_BYTES):
        self._comm = comm.Dup()
        self._node_comm = split_by_node(self._comm)
        self._allocate, self._limit = allocate, message_bytes
        self._handles: list[PersistentHandle] = []
        self._windows: list = []
        self._relays: list[Relay] = []
        self.rank, self.size = self._comm.rank, self._comm.size
        node_of = number_nodes(leaders(self._comm, self._node_comm))
        self.node, self.nodes = node_of[self.rank], max(node_of) + 1
        self.local_rank = choose_local_ranks(self.gather_json(claims), node_of)[self.rank]
        self.local_size = node_of.count(self.node)

    def allocate(self, count: int, dtype):
        return self._allocate(count, dtype)

    def scratch(self, count: int, dtype):
        return self._allocate(count, dtype)

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._prepare(self._comm.Send_init, moves, "receive", tag)

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._prepare(self._comm.Recv_init, moves, "send", tag)

    def _prepare(self, prepare, moves, verb: str, tag: int) -> Handle:
        requests = []
        for peer, span in moves:
            data = as_bytes(span)
            with _told(lambda peer=peer: f"preparing a message for rank {peer} to {verb} (tag {tag})"):
                requests += [prepare([data[a:b], MPI.BYTE], peer, tag) for a, b in cut(data.size, self._limit)]
        handle = PersistentHandle(requests, [peer for peer, _ in moves], verb, tag)
        self._handles.append(handle)
        return handle

    def native_allreduce(self, span, op: str = "sum", source=None) -> None:
        with _told(lambda: "all-reducing"):
            self._comm.Allreduce(MPI.IN_PLACE if source is None else source, span, OPS[op])

    def native_allreduce_start(self, span) -> Handle:
        handle = ReduceHandle(self._comm, span)
        handle.start()
        return handle

    def broadcast(self, span, root: int = 0) -> None:
        data = as_bytes(span)
        with _told(lambda: f"rank {root} broadcasts"):
            for start, stop in cut(data.size, self._limit):
                self._comm.Bcast([data[start:stop], MPI.BYTE], root)

    def gather_json(self, value) -> list:
        with _told(lambda: "gathering values"):
            return [json.loads(text) for text in gather_text(self._comm, json.dumps(value))]

    def barrier(self) -> None:
        with _told(lambda: "waiting in a barrier"):
            self._comm.Barrier()

    def node_barrier(self) -> None:
        with _told(lambda: "waiting in a barrier of this node"):
            self._node_comm.Barrier()

    def node_window(self, nbytes: int):
        # The memory is the window's: it is gone after close, also for arrays that still point to it.
        got = shared_window(self._node_comm, nbytes)
        if got is None:
            return None
        window, array = got
        self._windows.append(window)
        return array

    def board(self, nbytes: int) -> Rows:
        shared = self.node_window(self.size * nbytes)
        rows = np.zeros(self.size * nbytes, np.uint8) if shared is None else shared
        rows = rows.reshape(self.size, nbytes)
        group = np.zeros(self._node_comm.size, np.int64)
        self._node_comm.Allgather(np.array([self.rank], np.int64), group)
        near = [self.rank] if shared is None else group.tolist()
        if not self._any(len(near) < self.size):
            return Rows(rows, near)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            level = THREAD_LEVELS[MPI.Query_thread()]
            gap = f"ranks that share no memory with it: that takes a thread, and this MPI gives thread level {level}"
            return Rows(rows, near, gap)
        relay = relayed(self._comm, near, rows)
        if relay is not None:
            self._relays.append(relay)
        return Rows(rows, near)

    def _any(self, own: bool) -> bool:
        every = np.zeros(1, np.int64)
        self._comm.Allreduce(np.array([own], np.int64), every, MPI.MAX)
        return bool(every[0])

    def abort(self, code: int) -> None:
        # Called by a thread while another is in an MPI call, some MPIs do not come to it.
        backstop = threading.Timer(ABORT_S, os._exit, [code])
        backstop.daemon = True
        backstop.start()
        sys.stdout.flush()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        for relay in self._relays:
            relay.end()
        for handle in self._handles:
            handle.free()
        for window in self._windows:
            window.Free()
        self._handles, self._windows, self._relays = [], [], []
        self._node_comm.Free()
        self._comm.Free()

    def describe(self) -> str:
        return f"{library()}, thread level {THREAD_LEVELS[MPI.Query_thread()]}"


def library() -> str:
    """The loaded MPI: name and version."""
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
