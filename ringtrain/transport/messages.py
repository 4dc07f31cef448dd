"""Messages over MPI: persistent point-to-point requests, and the MPI's own collectives for the start of a
run.

Everything travels as bytes, on a communicator of our own, so that no message of another library is taken for
ours. Spans are host memory, or bytes by their address (:class:`Raw`), which the MPI must be able to use. An MPI error
becomes a TransportError that names the peers it concerns.
"""

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
from mpi4py import MPI

from ringtrain.errors import RankLostError, TransportError
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.board import Rows
from ringtrain.transport.launcher import choose_local_ranks, number_nodes
from ringtrain.transport.links import Links
from ringtrain.transport.mapped import Arena, Lane, Lanes, twins
from ringtrain.transport.memory import MESSAGE_BYTES, Raw, aligned_zeros, as_bytes, cut
from ringtrain.transport.nameless import Fence
from ringtrain.transport.node import crowded, free, gather_text, leaders, pieces_of, shared_window, split_by_node
from ringtrain.transport.relay import Relay, relayed
from ringtrain.transport.remote import RemoteTally
from ringtrain.transport.shared import share
from ringtrain.transport.tolerance import end_job, frailty, tolerant
from ringtrain.transport.waiting import SPIN_S, Patience, peers, wait_for

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}
ABORT_S = 10.0
OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


LOST = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
REDUCES_KEPT = 16  # more than are ever under way at once


def _told(what: str, error: MPI.Exception) -> TransportError:
    """An MPI error as one that says what was being done, and with whom."""
    if error.Get_error_class() in LOST:
        return RankLostError(
            f"a rank has died (seen while {what}: {error.Get_error_string()}). Go on from the last checkpoint with "
            "--resume auto; with --elastic the others go on by themselves"
        )
    return TransportError(f"MPI failed while {what}: {error.Get_error_string()}")


@contextmanager
def _telling(what: str):
    try:
        yield
    except MPI.Exception as error:
        raise _told(what, error) from error


def _given(data):
    """Bytes as mpi4py takes them."""
    return MPI.buffer.fromaddress(data.address, data.size) if isinstance(data, Raw) else data


class PersistentHandle(Handle):
    """Prepared sends or receives: started all at once, by ``post``, and tested all at once.

    Most are one message, and are tested often: no call is made that need not be. ``moves`` are kept: a request holds
    no more than the address of what it moves.
    """

    def __init__(
        self,
        requests: list,
        moves: Sequence[tuple[int, object]],
        verb: str,
        tag: int,
        patience: Patience,
        freed: Callable[["PersistentHandle"], None],
    ):
        self._requests, self._moves, self._verb, self._tag, self._patience = requests, moves, verb, tag, patience
        self._freed = freed
        one = requests[0] if len(requests) == 1 else None
        self.post = one.Start if one else partial(MPI.Prequest.Startall, requests)
        self._test = one.Test if one else partial(MPI.Request.Testall, requests)
        self._active = False

    def start(self) -> None:
        try:
            self.post()
        except MPI.Exception as error:
            raise _told(self._waiting(), error) from error
        self._active = True

    def test(self) -> bool:
        if self._active:
            try:
                self._active = not self._test()
            except MPI.Exception as error:
                raise _told(self._waiting(), error) from error
        return not self._active

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, self._awaited, patience=self._patience)

    def free(self) -> None:
        for request in self._requests:
            request.Free()
        self._requests = []
        self._active = False
        self._freed(self)

    def _awaited(self) -> str:
        return f"{peers(peer for peer, _ in self._moves)} to {self._verb} (tag {self._tag})"

    def _waiting(self) -> str:
        return f"waiting for {self._awaited()}"


class ReduceHandle(Handle):
    """The MPI's all-reduce of one span, in flight."""

    def __init__(self, comm, span):
        self._comm, self._span = comm, span
        self._request = MPI.REQUEST_NULL

    def start(self) -> None:
        with _telling("all-reducing"):
            self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._span, MPI.SUM)

    def test(self) -> bool:
        with _telling("all-reducing"):
            return self._request.Test()

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, lambda: "all ranks to all-reduce")


class Messages(Transport):
    """This rank's end of a communicator. Collective to make. ``claims`` are the launcher's words about local
    ranks (:func:`local_claims`); ``message_bytes`` is where messages are cut."""

    def __init__(self, comm, claims: dict, allocate=None, message_bytes: int = MESSAGE_BYTES):
        self._comm = comm.Dup()
        self._node_comm = split_by_node(self._comm)
        self._allocate, self._limit = allocate or aligned_zeros, message_bytes
        self._shares = allocate is None and self._node_comm.size > 1
        self._handles: set[PersistentHandle] = set()
        self._windows: list = []
        self._tolerant = tolerant(os.environ)
        self._fence = Fence()
        self._arenas: list[Arena] = []
        self._lanes = Lanes(self.node_window, self._node_comm.rank, self._node_comm.size, self._sync)
        self._relays: list[Relay] = []
        self._reduces: deque[ReduceHandle] = deque(maxlen=REDUCES_KEPT)
        self.closing: list[Callable[[], None]] = []
        self.leaving: list[Callable[[], None]] = []
        self._tallies: list[RemoteTally] = []
        self.rank, self.size = self._comm.rank, self._comm.size
        node_of = number_nodes(leaders(self._comm, self._node_comm))
        self.node, self.nodes = node_of[self.rank], max(node_of) + 1
        self.local_rank = choose_local_ranks(self.gather_json(claims), node_of)[self.rank]
        self.local_size = node_of.count(self.node)
        self.neighbours = tuple(rank for rank, node in enumerate(node_of) if node == self.node)
        self.links = Links(self.neighbours)
        self.threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.frailty = frailty(os.environ, library())
        self.patience = Patience(0.0 if crowded(self._node_comm) else SPIN_S, poll=self._poll)

    def allocate(self, count: int, dtype):
        """In a shared window of the node, where there is one to be had."""
        nbytes = count * np.dtype(dtype).itemsize
        pieces = self._share([nbytes] * self.local_size) if self._shares and nbytes else None
        if pieces is None:
            return self._allocate(count, dtype)
        self._arenas.append(Arena(pieces, self._node_comm.rank))
        return pieces[self._node_comm.rank].view(dtype)

    def _share(self, sizes: Sequence[int]) -> list | None:
        """Arrays of so many bytes, by place in the node, that all of its ranks read and write."""
        if self._tolerant:
            with _telling("sharing memory"):
                return share(self._node_comm, sizes)
        # The memory is the window's: it is gone after close, also for arrays that still point to it.
        window = shared_window(self._node_comm, sizes[self._node_comm.rank])
        if window is None:
            return None
        self._windows.append(window)
        return pieces_of(window, self._node_comm, sizes)

    def scratch(self, count: int, dtype):
        return self._allocate(count, dtype)

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        handle = self._prepare(self._comm.Send_init, moves, "receive", tag)
        handle.post = self.links.counting(handle.post, moves)
        return handle

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._prepare(self._comm.Recv_init, moves, "send", tag)

    def _prepare(self, prepare, moves, verb: str, tag: int) -> PersistentHandle:
        requests = []
        for peer, span in moves:
            data = as_bytes(span)
            with _telling(f"preparing a message for rank {peer} to {verb} (tag {tag})"):
                requests += [prepare([_given(data[a:b]), MPI.BYTE], peer, tag) for a, b in cut(data.size, self._limit)]
        handle = PersistentHandle(requests, moves, verb, tag, self.patience, self._handles.discard)
        self._handles.add(handle)
        return handle

    def native_allreduce(self, span, op: str = "sum", source=None) -> None:
        with _telling("all-reducing"):
            self._comm.Allreduce(MPI.IN_PLACE if source is None else source, span, OPS[op])

    def native_allreduce_start(self, span) -> Handle:
        handle = ReduceHandle(self._comm, span)
        self._reduces.append(handle)
        handle.start()
        return handle

    def broadcast(self, span, root: int = 0) -> None:
        data = as_bytes(span)
        with _telling(f"rank {root} broadcasts"):
            for start, stop in cut(data.size, self._limit):
                self._comm.Bcast([data[start:stop], MPI.BYTE], root)

    def gather_json(self, value) -> list:
        with _telling("gathering values"):
            return [json.loads(text) for text in gather_text(self._comm, json.dumps(value))]

    def barrier(self) -> None:
        with _telling("waiting in a barrier"):
            self._comm.Barrier()

    def node_barrier(self) -> None:
        with _telling("waiting in a barrier of this node"):
            self._node_comm.Barrier()

    def node_window(self, nbytes: int):
        pieces = self._share([nbytes] + [0] * (self.local_size - 1))
        return None if pieces is None else pieces[0]

    def twins(self, span) -> list | None:
        return [span] if self.local_size == 1 else twins(self._arenas, span)

    def lane(self, tag: int) -> Lane | None:
        return self._lanes.lane(tag)

    def _sync(self) -> None:
        if self._windows:
            self._windows[0].Sync()  # one orders the memory of all
        else:
            self._fence()

    def _poll(self) -> None:
        with _telling("polling"):
            self._comm.Iprobe()

    def board(self, nbytes: int) -> Rows:
        shared = self.node_window(self.size * nbytes)
        rows = np.zeros(self.size * nbytes, np.uint8) if shared is None else shared
        rows = rows.reshape(self.size, nbytes)
        near = [self.rank] if shared is None else list(self.neighbours)
        if not self._any(len(near) < self.size):
            return Rows(rows, near)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            level = THREAD_LEVELS[MPI.Query_thread()]
            gap = f"ranks that share no memory with it: that takes a thread, and this MPI gives thread level {level}"
            return Rows(rows, near, gap)
        with _telling("preparing the board"):
            relay = relayed(self._comm, near, rows)
        if relay is not None:
            self._relays.append(relay)
        return Rows(rows, near)

    def tally(self, count: int) -> RemoteTally:
        self._tallies.append(RemoteTally(self._comm, count))
        return self._tallies[-1]

    def _any(self, own: bool) -> bool:
        every = np.array([own], np.int64)
        self.native_allreduce(every, "max")
        return bool(every[0])

    def abort(self, code: int) -> None:
        if self._tolerant:
            end_job()
        # Called by a thread while another is in an MPI call, some MPIs do not come to it.
        backstop = threading.Timer(ABORT_S, os._exit, [code])
        backstop.daemon = True
        backstop.start()
        sys.stdout.flush()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(code)

    def abandon(self) -> None:
        """After a death: wake those who wait in this world, and end what runs in it here; its requests and memory stay
        as they are. Not collective, as :meth:`close` is."""
        for comm in (self._comm, self._node_comm):
            with suppress(MPI.Exception):
                comm.Revoke()
        for action in self.leaving:
            action()
        for relay in self._relays:
            relay.leave()

    @property
    def comm(self):
        """The MPI's communicator of this world."""
        return self._comm

    def close(self) -> None:
        for action in self.closing:
            action()
        for relay in self._relays:
            relay.end()
        for tally in self._tallies:
            tally.free()
        for handle in list(self._handles):
            handle.free()
        for window in self._windows:
            free(window)
        self._windows, self._relays, self._tallies = [], [], []
        self._node_comm.Free()
        self._comm.Free()

    def describe(self) -> str:
        return f"{library()}, thread level {THREAD_LEVELS[MPI.Query_thread()]}"


def library() -> str:
    """The loaded MPI: name and version."""
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
