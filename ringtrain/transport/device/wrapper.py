"""A world whose spans may lie in device memory: another transport, and one of two ways to move such spans.

Messages know no streams: the caller starts a send when the data is computed, and a receive when no operation on the
device uses the span any more. When a handle is done, so are its copies.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringtrain.transport.base import ForwardingHandle, ForwardingTransport, Handle, Moves, Transport
from ringtrain.transport.buffers import ALIGNMENT, message_bounds
from ringtrain.transport.device.cuda_ipc import CudaIpc, grown
from ringtrain.transport.device.host_collectives import StagedAllReduces
from ringtrain.transport.device.moves import Direct, Staged
from ringtrain.transport.device.staging import SEGMENT_BYTES, CopyEngine
from ringtrain.transport.services import Counters, Rows
from ringtrain.transport.waiting import Patience, wait_for

DIRECT, STAGED = "direct", "staged"
FOREVER_S = 1e9  # a collective has no deadline: the guard has one


class PollingHandle(ForwardingHandle):
    """A collective on host memory whose wait also progresses messages."""

    def __init__(self, inner: Handle, engine: CopyEngine, patience: Patience):
        super().__init__(inner)
        self._engine, self._patience = engine, patience

    def test(self) -> bool:
        self._engine.progress()
        return self._inner.test()

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, lambda: "all ranks to all-reduce", patience=self._patience)


class DeviceTransport(ForwardingTransport):
    """``inner``'s world, with arrays of ``runtime`` as spans.

    way: :data:`DIRECT` hands their addresses to the MPI, :data:`STAGED` copies them through pinned host memory. Host
         arrays go the same way as without a device
    ipc: maps the allocations of the node's ranks on all of them; None: nothing is mapped
    engine: the copy engine of the world that this group is a part of: a wait in either progresses the messages of both
    """

    def __init__(
        self,
        inner: Transport,
        runtime,
        way: str,
        segment_bytes: int = SEGMENT_BYTES,
        ipc: CudaIpc | None = None,
        engine: CopyEngine | None = None,
    ):
        super().__init__(inner)
        self._runtime, self._ipc, self._way = runtime, ipc, way
        self._engine = engine or CopyEngine(runtime, segment_bytes)
        self.why_not_shared = "" if ipc is None else ipc.why
        self._moves = Direct(inner, runtime) if way == DIRECT else Staged(inner, self._engine)
        self._staged = way == STAGED
        self._sums = StagedAllReduces(inner, self._engine)
        self.patience = replace(inner.patience, poll=self._poll)

    # ── spans ─────────────────────────────────────────────────────────────────────────────────────────────
    def allocate(self, count: int, dtype):
        """Return an allocation of its own, which an MPI may register, and which other processes map if they can."""
        nbytes = count * np.dtype(dtype).itemsize
        memory = self._whole(nbytes if self._ipc is None else grown(nbytes))
        if self._ipc is not None:
            self.why_not_shared = self._ipc.share(memory) or self.why_not_shared
        return self._cut(memory, count, dtype)

    def scratch(self, count: int, dtype):
        return self._cut(self._whole(count * np.dtype(dtype).itemsize), count, dtype)

    def _whole(self, nbytes: int):
        memory = self._runtime.whole(max(nbytes, ALIGNMENT))
        self._runtime.clear(memory, self._engine.up)
        self._engine.up.synchronize()
        return memory

    def _cut(self, memory, count: int, dtype):
        return self._runtime.view(memory[: count * np.dtype(dtype).itemsize], dtype)

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._moves.sends(moves, tag)

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._moves.recvs(moves, tag)

    def group(self, ranks: Sequence[int], tag: int = 0) -> Transport | None:
        """As of any transport; in a group no memory is mapped."""
        inner = self._inner.group(ranks, tag)
        return None if inner is None else DeviceTransport(inner, self._runtime, self._way, engine=self._engine)

    # ── collectives ───────────────────────────────────────────────────────────────────────────────────────
    def _wait_for_all(self) -> None:
        """Wait for all ranks before a blocking collective, and progress messages meanwhile: a rank that waits for a
        segment which another rank has yet to hand to the MPI would not come. All-reduces that were started keep their
        order.
        """
        self._hand_over()
        if self._staged and self.size > 1:
            handle = self._inner.native_allreduce_start(np.zeros(1))
            all_ranks = PollingHandle(handle, self._engine, self.patience)
            wait_for(all_ranks.test, FOREVER_S, lambda: "all ranks to come", patience=self.patience)

    def _hand_over(self) -> None:
        self._engine.settle()
        self._sums.begin_all()

    def native_allreduce(self, span, op: str = "sum") -> None:
        self._wait_for_all()
        if isinstance(span, np.ndarray):
            self._inner.native_allreduce(span, op)
        else:
            self._sums.blocking(span, op)

    def native_allreduce_start(self, span) -> Handle:
        if isinstance(span, np.ndarray):
            self._hand_over()
            return PollingHandle(self._inner.native_allreduce_start(span), self._engine, self.patience)
        return self._sums.started(span)

    def broadcast(self, span, root: int = 0) -> None:
        self._wait_for_all()
        if isinstance(span, np.ndarray):
            self._inner.broadcast(span, root)
            return
        data = self._runtime.view(span, np.uint8)
        for start, stop in message_bounds(data.size, self._engine.segment_bytes):
            self._broadcast_piece(data[start:stop], root)

    def _broadcast_piece(self, data, root: int) -> None:
        memory = self._engine.pinned.take(data.size)
        if self.rank == root:
            self._engine.copy_down(data, memory).wait()
        self._inner.broadcast(memory, root)
        if self.rank != root:
            self._engine.copy_up(memory, data).wait()
        self._engine.pinned.give(memory)

    def gather_json(self, value) -> list:
        self._wait_for_all()
        return self._inner.gather_json(value)

    def barrier(self) -> None:
        self._wait_for_all()
        self._inner.barrier()

    def node_barrier(self) -> None:
        self._hand_over()
        self._inner.node_barrier()

    # ── the node ──────────────────────────────────────────────────────────────────────────────────────────
    def peer_views(self, span) -> list | None:
        if isinstance(span, np.ndarray):
            return self._inner.peer_views(span)
        if self.local_size == 1:
            return [span]
        return None if self._ipc is None else self._ipc.peer_views(span)

    def board(self, nbytes: int) -> Rows:
        self._wait_for_all()
        return self._inner.board(nbytes)

    def counters(self, count: int) -> Counters:
        self._wait_for_all()
        return self._inner.counters(count)

    def _poll(self) -> None:
        self._inner.patience.poll()
        self._engine.progress()

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────────
    def describe(self) -> str:
        mapped = self._ipc is not None and self.local_size > 1 and not self.why_not_shared
        beside = ", and mapped within a node by CUDA IPC" if mapped else ""
        return f"{self._inner.describe()}, device memory {self._moves.words}{beside}"
