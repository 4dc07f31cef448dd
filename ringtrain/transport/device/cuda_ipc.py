"""Device memory that the ranks of a node map by CUDA's IPC: on several devices, or on one that several ranks use.

Each rank names its allocation, and opens those that its neighbours name. Every rank then has views of the others' spans
next to its own, as in an arena of host memory (:mod:`ringtrain.transport.shared_arena`), and kernels of any rank read
and write all of them. Ranks exchange names, and wait for one another, in host memory that the node shares.

A failure is not an error but a reason, :attr:`CudaIpc.why`, the same on all ranks of the node: then there are no peer
views. A process opens an allocation once, however often it is asked for, and all processes close it before its owner
frees it: CUDA does not define the result of freeing memory that others have open.

Ranks wait by signal counters in host memory, after an event of the device that the host queries. No kernel waits: ranks
may share a device, and a kernel that spins would keep the others from it. With interprocess events the device could
wait by itself, but a peer must know that an event has been recorded before it can wait for it, so the host is needed
anyway.

Source: CUDA C++ programming guide, "Interprocess communication"; cudaIpcOpenMemHandle in the runtime's reference.
"""

import json
import os

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import DeviceError, StalledError
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for

TAG = (1 << 14) - 1  # of the signal counter by which ranks wait for one another: after the tags of reductions
ROW_BYTES = 2048  # of a rank's message to the others
ALLOCATION_BYTES = 2 << 20  # CUDA cuts smaller allocations from one block, and would share, and open, that
BARRIER_S = 120.0
NAMESPACE = "/proc/self/ns/pid"


class OpenedAllocations:
    """The allocations of others that this process has open: each once, for all of its users."""

    def __init__(self, runtime):
        self._runtime, self._opened = runtime, {}

    def open(self, name: bytes, nbytes: int):
        array, holders = self._opened.get(name) or (self._runtime.open(name, nbytes), 0)
        self._opened[name] = array, holders + 1
        return array

    def close(self, name: bytes) -> None:
        array, holders = self._opened.pop(name)
        if holders > 1:
            self._opened[name] = array, holders - 1
        else:
            self._runtime.close(array)


def grown(nbytes: int) -> int:
    """Return a size for which an allocation is a block of its own."""
    return max(-(-nbytes // ALLOCATION_BYTES), 1) * ALLOCATION_BYTES


class SharedAllocation:
    """One allocation of every rank of the node.

    arrays: uint8 arrays of one length, by local rank; ``local_rank`` is this rank's
    names:  the names of the others' allocations
    """

    def __init__(self, runtime, arrays: list, local_rank: int, names: list[bytes]):
        self._runtime, self._arrays, self._local_rank, self.names = runtime, arrays, local_rank, names
        self._start = runtime.address(arrays[local_rank])

    def peer_views(self, span: Array) -> list[Array] | None:
        """Return the span's elements in every array; None if the span does not lie in this rank's array."""
        nbytes, start = span.size * span.dtype.itemsize, self._runtime.address(span) - self._start
        if not 0 <= start <= self._arrays[self._local_rank].size - nbytes:
            return None
        return [self._runtime.view(array[start : start + nbytes], span.dtype) for array in self._arrays]


class CudaIpc:
    """Memory of devices mapped by the ranks of a node. Collective over the node to make: a small allocation is tried
    first, which all ranks read and write.

    transport: transport of host memory, with the ranks and the node's shared memory; closes this when it closes
    runtime:   this rank's device (:mod:`ringtrain.ops.cuda.runtime`)
    why:       reason for the lack of peer views, in words; "" if they exist
    """

    def __init__(self, transport: Transport, runtime):
        self._transport, self._runtime = transport, runtime
        self._local_rank = transport.neighbours.index(transport.rank)
        self._opened = OpenedAllocations(runtime)
        self._shared: list[SharedAllocation] = []
        self._stream = runtime.stream()
        self.why = ""
        transport.before_closing.append(self.close)
        if transport.local_size > 1:
            counter = transport.signal_counter(TAG)
            board = transport.node_window(transport.local_size * ROW_BYTES)
            if board is None or counter is None:
                self.why = (
                    "the ranks of the node share no host memory, which they need to exchange handles of device memory"
                )
            else:
                self._counter, self._board = counter, board.reshape(transport.local_size, ROW_BYTES)
                self.why = self._probe()

    def share(self, memory) -> str:
        """Let the node's ranks open ``memory``, an array of Runtime.whole, and open theirs, which have the same length.
        Collective over the node. Returns the reason of a failure; "" if it worked.
        """
        if self._transport.local_size == 1 or self.why:
            return self.why
        shared, why = self._exchange(memory)
        if shared is not None:
            self._shared.append(shared)
        return why

    def peer_views(self, span: Array) -> list[Array] | None:
        """Return the span's elements on every rank of the node, by local rank, its own included; None if it does not
        lie in memory of :meth:`share`.
        """
        if self._transport.local_size == 1:
            return [span]
        candidates = (shared.peer_views(span) for shared in self._shared)
        return next((views for views in candidates if views is not None), None)

    def close(self) -> None:
        """Close the others' allocations, and wait until all ranks have done so: from then on owners may free theirs.
        Collective over the node. If a rank does not come, this rank's memory is kept as long as this object.
        """
        if not self._shared:
            return
        self._stream.synchronize()
        for shared in self._shared:
            self._close(shared.names)
            shared.names = []
        try:
            self._barrier("close all device memory")
        except StalledError:
            return
        self._shared = []

    # ── how ranks agree ───────────────────────────────────────────────────────────────────────────────────
    def _exchange(self, memory) -> tuple[SharedAllocation | None, str]:
        """Return the allocation that all ranks could open; or None, and the reason."""
        rows = self._tell(self._offer(memory), "name memory of its device")
        why = _first(rows, self._transport.neighbours) or _unlike(rows, self._transport.neighbours)
        if why:
            return None, why
        names = [bytes.fromhex(row["name"]) for row in rows]
        arrays, opened, error = self._open_all(names, memory)
        why = _first(self._tell({"error": error}, "open device memory"), self._transport.neighbours)
        if why:
            self._close(opened)
            self._barrier("close device memory")
            return None, why
        return SharedAllocation(self._runtime, arrays, self._local_rank, opened), ""

    def _open_all(self, names: list[bytes], memory) -> tuple[list, list[bytes], str]:
        """Return the arrays, the names that were opened for them, and the error."""
        arrays: list = []
        opened: list[bytes] = []
        for local_rank, name in enumerate(names):
            if local_rank == self._local_rank:
                arrays.append(memory)
                continue
            try:
                arrays.append(self._opened.open(name, memory.size))
            except (DeviceError, OSError) as error:
                owner = peers([self._transport.neighbours[local_rank]])
                return arrays, opened, f"memory of {owner} cannot be opened: {error}"
            opened.append(name)
        return arrays, opened, ""

    def _offer(self, memory) -> dict:
        try:
            name = self._runtime.share(memory).hex()
        except (DeviceError, OSError) as error:
            return {"error": f"memory of the device cannot be named: {error}"}
        return {"error": "", "name": name, "nbytes": memory.size, "space": _namespace()}

    def _close(self, names: list[bytes]) -> None:
        for name in names:
            self._opened.close(name)

    def _tell(self, row: dict, what: str) -> list[dict]:
        row["error"] = row["error"][: ROW_BYTES // 8]  # JSON takes up to six bytes a character
        text = json.dumps(row).encode()
        self._board[self._local_rank] = np.frombuffer(text.ljust(ROW_BYTES), np.uint8)
        self._barrier(what)
        rows = [json.loads(text.tobytes()) for text in self._board]
        self._barrier(what)  # no rank writes its next row before all have read this one
        return rows

    def _barrier(self, what: str) -> None:
        def awaited() -> str:
            late = peers(self._transport.neighbours[local_rank] for local_rank in self._counter.late())
            return f"{late} to {what}"

        self._counter.advance()
        wait_for(self._counter.reached, BARRIER_S, awaited, patience=self._transport.patience)

    # ── the trial ─────────────────────────────────────────────────────────────────────────────────────────
    def _probe(self) -> str:
        """Return the reason why not all ranks read and write one another's memory; "" if they do."""
        memory = self._runtime.whole(ALLOCATION_BYTES)
        self._upload(np.full(memory.size, 1 + self._local_rank % 250, np.uint8), memory)
        shared, why = self._exchange(memory)
        if shared is None:
            return why
        views = shared.peer_views(memory) or []
        for what, trial in (
            ("read device memory", self._read),
            ("write device memory", self._write),
            ("read the bytes that others wrote to its device memory", self._written),
        ):
            rows = self._tell({"error": _tried(trial, views)}, what)
            why = _first(rows, self._transport.neighbours)
            if why:
                break
        self._close(shared.names)
        self._barrier("close device memory")
        return why

    def _read(self, views: list) -> str:
        for local_rank, view in enumerate(views):
            if not (self._download(view) == 1 + local_rank % 250).all():
                return (
                    f"memory of {peers([self._transport.neighbours[local_rank]])} was opened, but its bytes differ "
                    "from its owner's"
                )
        return ""

    def _write(self, views: list) -> str:
        for view in views:
            self._upload(
                np.full(1, 255 - self._local_rank % 250, np.uint8), view[self._local_rank : self._local_rank + 1]
            )
        return ""

    def _written(self, views: list) -> str:
        values = self._download(views[self._local_rank])[: len(views)]
        late = [local_rank for local_rank in range(len(views)) if values[local_rank] != 255 - local_rank % 250]
        return (
            f"writes of {peers(self._transport.neighbours[p] for p in late)} to this rank's memory did not arrive"
            if late
            else ""
        )

    def _upload(self, host: np.ndarray, array) -> None:
        self._runtime.upload(host, array, self._stream)
        self._stream.synchronize()

    def _download(self, array) -> np.ndarray:
        host = np.zeros(array.size, np.uint8)
        self._runtime.download(array, host, self._stream)
        return host


def _tried(trial, views: list) -> str:
    """Return the error of a trial, one of the device itself included."""
    try:
        return trial(views)
    except DeviceError as error:
        return str(error)


def _namespace() -> str:
    try:
        return os.readlink(NAMESPACE)
    except OSError:
        return ""


def _first(rows: list[dict], neighbours) -> str:
    """Return the first rank's error, with the ranks that have it."""
    error = next((row["error"] for row in rows if row["error"]), "")
    alike = [rank for rank, row in zip(neighbours, rows, strict=True) if row["error"] == error]
    return error and f"{error}, on {peers(alike)}"


def _unlike(rows: list[dict], neighbours) -> str:
    if len({row["space"] for row in rows}) > 1:
        return (
            f"{peers(neighbours)} are in different process namespaces, and CUDA maps no memory across them: start the "
            "ranks in one container, or let containers share one (--pid=host)"
        )
    sizes = sorted({row["nbytes"] for row in rows})
    return f"ranks of the node ask for {sizes[0]} and {sizes[-1]} bytes" if len(sizes) > 1 else ""
