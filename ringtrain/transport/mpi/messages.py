"""Messages over MPI: persistent point-to-point requests, and the MPI's own collectives for the start of a run.

Everything travels as bytes, on a private communicator, so that no message of another library is taken for ours. Spans
are host memory, or bytes by their address (:class:`Raw`), which the MPI must be able to use. An MPI error becomes a
TransportError that names the peers it concerns.
"""

import json
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Handle, Moves, RankInfo, TagSpace, Transport
from ringtrain.transport.buffers import MESSAGE_BYTES, as_bytes, message_bounds
from ringtrain.transport.deadline import Deadline
from ringtrain.transport.fault_tolerance import end_job, is_fault_tolerant, wait_until_read, why_not_fault_tolerant
from ringtrain.transport.launch_environment import number_nodes
from ringtrain.transport.mpi.arrivals import check_arrivals
from ringtrain.transport.mpi.board_relay import RowRelay, relayed
from ringtrain.transport.mpi.native import OPS, RUN, NativeHandle
from ringtrain.transport.mpi.node import gather_text, has_too_few_cores, leaders, split_by_node
from ringtrain.transport.mpi.node_memory import Allocate, NodeSharedMemory
from ringtrain.transport.mpi.requests import PersistentMessages, has_lost, naming_peers
from ringtrain.transport.mpi.services import MpiServiceMessages, RmaCounters
from ringtrain.transport.mpi.single_messages import SingleMessages
from ringtrain.transport.native_call import ALL_REDUCE, NativeCall
from ringtrain.transport.services import Rows, ServiceMessages
from ringtrain.transport.shared_arena import SignalCounter, find_peer_views
from ringtrain.transport.traffic import LinkTraffic
from ringtrain.transport.waiting import SPIN_S, Patience

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}
ABORT_S = 10.0
REDUCES_KEPT = 16  # more than are ever under way at once


class Messages(Transport):
    """This rank's end of a communicator. Collective to make.

    message_bytes: longest message
    world_ranks:   of a group's ranks; None for a world
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        allocate: Allocate | None = None,
        message_bytes: int = MESSAGE_BYTES,
        world_ranks: Sequence[int] | None = None,
    ):
        self._comm = comm.Dup()
        self._node_comm, self._apart = split_by_node(self._comm)
        self._memory = NodeSharedMemory(self._comm, self._node_comm, allocate)
        self._relays: list[RowRelay] = []
        self._native_calls = count()
        self._reduces: deque[Handle] = deque(maxlen=REDUCES_KEPT)
        self._counters: list[RmaCounters] = []
        self._spaces: list[SingleMessages] = []
        self._groups: list[Messages] = []  # that are open
        self.before_closing, self.before_leaving = [], []
        self.activity = Activity()
        self.rank_info = self._find_rank_info()
        self.links = LinkTraffic(self.neighbours)
        self.world_ranks = range(self.size) if world_ranks is None else world_ranks
        level = MPI.Query_thread()
        self.why_one_thread = (
            ""
            if level == MPI.THREAD_MULTIPLE
            else f"this MPI gives thread level {THREAD_LEVELS[level]}, and two threads need multiple"
        )
        self.why_not_fault_tolerant = why_not_fault_tolerant(os.environ, mpi_library())
        self.patience = Patience(0.0 if has_too_few_cores(self._node_comm) else SPIN_S, poll=self._poll)
        self._requests = PersistentMessages(self._comm, self.patience, message_bytes, self.world_ranks)

    def _find_rank_info(self) -> RankInfo:
        rank, node_of = self._comm.rank, number_nodes(leaders(self._comm, self._node_comm))
        neighbours = tuple(other for other, node in enumerate(node_of) if node == node_of[rank])
        local_rank = neighbours.index(rank)
        return RankInfo(rank, self._comm.size, node_of[rank], max(node_of) + 1, local_rank, len(neighbours), neighbours)

    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        """Return memory in a shared window of the node, if the system has one."""
        return self._memory.allocate(count, dtype)

    def scratch(self, count: int, dtype: DTypeLike) -> Array:
        return self._memory.scratch(count, dtype)

    def sends(self, moves: Moves, tag: int) -> Handle:
        handle = self._requests.prepare(self._comm.Send_init, moves, "receive", tag)
        handle.post = self.links.counting(handle.post, moves)
        return handle

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._requests.prepare(self._comm.Recv_init, moves, "send", tag)

    def native_allreduce(self, span: Array, op: str = "sum") -> None:
        with naming_peers("all-reducing", self._comm):
            self._comm.Allreduce(MPI.IN_PLACE, span, OPS[op])
            check_arrivals(self._comm)

    def native_allreduce_start(self, span: Array) -> Handle:
        host = np.asarray(span)
        handle = self.native_start(NativeCall(ALL_REDUCE, host, host))
        self._reduces.append(handle)
        return handle

    def native_start(self, call: NativeCall) -> Handle:
        number = next(self._native_calls)
        handle = NativeHandle(self._comm, call, self._requests.limit, self.patience, self.world_ranks, number)
        handle.start()
        return handle

    def native_run(self, call: NativeCall) -> None:
        if call.kind not in RUN:
            super().native_run(call)
            return
        with naming_peers(f"in the MPI's {call.kind}", self._comm):
            RUN[call.kind](self._comm, call)

    def tag_space(self) -> TagSpace:
        with naming_peers("making a space of messages", self._comm):
            comm = self._comm.Dup()
        self._spaces.append(SingleMessages(comm, self._requests.limit, self.patience, self.world_ranks))
        return self._spaces[-1]

    def group(self, ranks: Sequence[int], tag: int = 0) -> Transport | None:
        if self.rank not in ranks:
            return None
        whole = self._comm.Get_group()
        part = whole.Incl(ranks)
        with naming_peers("making a group of ranks", self._comm):
            comm = self._comm.Create_group(part, tag)
            world_ranks = [self.world_ranks[rank] for rank in ranks]
            messages = Messages(comm, message_bytes=self._requests.limit, world_ranks=world_ranks)
        messages.links = LinkTraffic(messages.neighbours, self.links)
        self._groups.append(messages)
        messages.before_closing.append(partial(self._groups.remove, messages))
        for handle in (comm, part, whole):
            handle.Free()
        return messages

    def broadcast(self, span: Array, root: int = 0) -> None:
        data = as_bytes(span)
        with naming_peers(f"broadcasting from rank {root}", self._comm):
            for start, stop in message_bounds(data.size, self._requests.limit):
                self._comm.Bcast([data[start:stop], MPI.BYTE], root)
            check_arrivals(self._comm)

    def gather_json(self, value: Any) -> list:
        with naming_peers("gathering values", self._comm):
            return [json.loads(text) for text in gather_text(self._comm, json.dumps(value))]

    def barrier(self) -> None:
        with naming_peers("waiting in a barrier", self._comm):
            self._comm.Barrier()
            check_arrivals(self._comm)

    def node_barrier(self) -> None:
        with naming_peers("waiting in a barrier of this node", self._comm):
            self._node_comm.Barrier()
            check_arrivals(self._node_comm)

    def node_window(self, nbytes: int) -> np.ndarray | None:
        return self._memory.window(nbytes)

    def share_mapped(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        return self._memory.share_mapped(array, path, offset)

    def unshare_mapped(self, array: np.ndarray) -> None:
        self._memory.unshare_mapped(array)

    def peer_views(self, span: Array) -> list[Array] | None:
        return [span] if self.local_size == 1 else find_peer_views(self._memory.arenas, span)

    def signal_counter(self, tag: int) -> SignalCounter | None:
        return self._memory.counters.signal_counter(tag)

    def _poll(self) -> None:
        with naming_peers("polling", self._comm):
            self._comm.Iprobe()

    def board(self, nbytes: int) -> Rows:
        shared = self.node_window(self.size * nbytes)
        rows = np.zeros(self.size * nbytes, np.uint8) if shared is None else shared
        rows = rows.reshape(self.size, nbytes)
        near = [self.rank] if shared is None else list(self.neighbours)
        apart = np.array([len(near) < self.size], np.int64)
        self.native_allreduce(apart, "max")
        if not apart[0]:
            return Rows(rows, near)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            gap = "ranks that share no memory with this rank: their rows need a thread, and this MPI gives thread level"
            return Rows(rows, near, f"{gap} {THREAD_LEVELS[MPI.Query_thread()]}")
        with naming_peers("preparing the board", self._comm):
            relay = relayed(self._comm, near, rows)
        if relay is not None:
            self._relays.append(relay)
        return Rows(rows, near)

    def counters(self, count: int) -> RmaCounters:
        self._counters.append(RmaCounters(self._comm, count))
        return self._counters[-1]

    def service_messages(self) -> ServiceMessages:
        with naming_peers("making messages of a service", self._comm):
            return MpiServiceMessages(self._comm, THREAD_LEVELS[MPI.Query_thread()])

    def abort(self, code: int) -> None:
        if is_fault_tolerant(os.environ):
            end_job()
        # Called by a thread while another is in an MPI call, some MPIs do not come to it.
        Deadline(ABORT_S, code).start()
        wait_until_read()
        MPI.COMM_WORLD.Abort(code)

    def abandon(self) -> None:
        """Leave this world and its groups after a death: wake the ranks that wait in it, and end its threads here. Its
        requests and memory stay. Not collective, unlike :meth:`close`.
        """
        for group in self._groups:
            group.abandon()
        for comm in (self._comm, self._node_comm):
            with suppress(MPI.Exception):
                comm.Revoke()
        for action in reversed(self.before_leaving):
            action()
        self.before_leaving.clear()
        self.before_closing.clear()
        for relay in self._relays:
            relay.leave()

    def has_lost(self) -> bool:
        return has_lost(self._comm)

    @property
    def comm(self) -> MPI.Intracomm:
        return self._comm

    def close_groups(self) -> None:
        """Close the groups that are open, with their lasting groups. Collective over the ranks of each."""
        for group in list(self._groups):
            group.close()

    def close(self) -> None:
        for action in self.before_closing:
            action()
        for relay in self._relays:
            relay.end()
        for counters in self._counters:
            counters.free()
        for space in self._spaces:
            space.free()
        self._requests.free()
        self._relays, self._counters, self._spaces = [], [], []
        self._node_comm.Free()
        self._comm.Free()

    def describe(self) -> str:
        return f"{mpi_library()}, thread level {THREAD_LEVELS[MPI.Query_thread()]}{self._apart}"


def mpi_library() -> str:
    line = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0")
    return " ".join(line.replace("Version:", "").split())
