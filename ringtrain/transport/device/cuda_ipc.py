"""Memory of devices that the ranks of a node map alike, by CUDA's IPC: several devices, or one that several ranks use.

Each rank names its allocation, and opens those that its neighbours name. A span of a rank's own then has a twin in
everybody else's, as in an arena of host memory (:mod:`ringtrain.transport.shared_arena`), and kernels of any rank read
and write all of them. Names are told, and ranks wait for one another, by host memory that the node shares.

What goes wrong here is no error but a reason, :attr:`Ipc.why`, the same on all ranks of the node: then there are no
twins. An allocation is opened once in a process, however often it is asked for, and closed by all before any owner lets
go of it: CUDA does not say what becomes of memory that is freed while others have it open.

Waiting is by the lanes of host memory, after an event of the device that is asked for, never waited for by a kernel:
ranks may share a device, where one that spins would keep the others from it. Interprocess events would let the device
wait by itself, but a peer must know that an event has been recorded before it can wait for it, which takes the host's
word all the same.

Source: CUDA C++ programming guide, "Interprocess communication"; cudaIpcOpenMemHandle in the runtime's reference.
"""

import json
import os

import numpy as np

from ringtrain.errors import DeviceError, StalledError
from ringtrain.transport import texts
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for

TAG = (1 << 14) - 1  # of the lane by which ranks meet: behind those of reductions
ROW_BYTES = 2048  # of what a rank tells the others at once
GRAIN_BYTES = 2 << 20  # CUDA cuts smaller allocations from one block, and would share, and open, that
MEET_S = 120.0
NAMESPACE = "/proc/self/ns/pid"


class OpenedAllocations:
    """What this process has open of others' memory: each once, for all who asked for it."""

    def __init__(self, runtime):
        self._runtime, self._held = runtime, {}

    def open(self, name: bytes, nbytes: int):
        array, holders = self._held.get(name) or (self._runtime.open(name, nbytes), 0)
        self._held[name] = array, holders + 1
        return array

    def close(self, name: bytes) -> None:
        array, holders = self._held.pop(name)
        if holders > 1:
            self._held[name] = array, holders - 1
        else:
            self._runtime.close(array)


def grown(nbytes: int) -> int:
    """So much that an allocation of it is a block of its own."""
    return max(-(-nbytes // GRAIN_BYTES), 1) * GRAIN_BYTES


class SharedAllocation:
    """One allocation of every rank of the node. pieces: uint8 arrays of one length, by place; ``own`` is this rank's
    place, whose piece is its own memory. names: of the others' pieces."""

    def __init__(self, runtime, pieces: list, own: int, names: list[bytes]):
        self._runtime, self._pieces, self._own, self.names = runtime, pieces, own, names
        self._start = runtime.address(pieces[own])

    def peer_views(self, span) -> list | None:
        """The span's elements in every piece; None where it does not lie in the own piece."""
        nbytes, start = span.size * span.dtype.itemsize, self._runtime.address(span) - self._start
        if not 0 <= start <= self._pieces[self._own].size - nbytes:
            return None
        return [self._runtime.view(piece[start : start + nbytes], span.dtype) for piece in self._pieces]


class CudaIpc:
    """Collective over the node to make: it is tried on a small allocation, which everybody reads and writes.

    transport: of host memory: its ranks, and what their nodes share. This is closed when that is
    runtime:   this rank's device (:mod:`ringtrain.ops.cuda.runtime`)
    why:       why there are no twins, in words; "" where there are
    """

    def __init__(self, transport: Transport, runtime):
        self._transport, self._runtime = transport, runtime
        self._own = transport.neighbours.index(transport.rank)
        self._opened, self._shared = OpenedAllocations(runtime), []
        self._stream = runtime.stream()
        self.why = ""
        transport.before_closing.append(self.close)
        if transport.local_size > 1:
            self._lane, board = transport.signal_counter(TAG), transport.node_window(transport.local_size * ROW_BYTES)
            if board is None or self._lane is None:
                self.why = texts.NO_HOST_MEMORY
            else:
                self._board = board.reshape(transport.local_size, ROW_BYTES)
                self.why = self._probe()

    def share(self, memory) -> str:
        """Let the node's ranks open ``memory``, an array of Runtime.whole, and open theirs: all as long. Collective
        over the node. Why that cannot be; "" where it can."""
        if self._transport.local_size == 1 or self.why:
            return self.why
        shared, why = self._exchange(memory)
        if shared is not None:
            self._shared.append(shared)
        return why

    def peer_views(self, span) -> list | None:
        """The span's elements on every rank of the node, by place, its own among them; None where it does not lie in
        memory of :meth:`share`."""
        if self._transport.local_size == 1:
            return [span]
        found = (shared.peer_views(span) for shared in self._shared)
        return next((views for views in found if views is not None), None)

    def close(self) -> None:
        """Close what is open of others, and wait until all have done so: from then on owners may free. Collective over
        the node. Where a rank does not come, this one's memory is kept as long as this object."""
        if not self._shared:
            return
        self._stream.synchronize()
        for shared in self._shared:
            self._close(shared.names)
            shared.names = []
        try:
            self._meet(texts.CLOSE_ALL)
        except StalledError:
            return
        self._shared = []

    # ── how ranks agree ───────────────────────────────────────────────────────────────────────────────────
    def _exchange(self, memory) -> tuple[SharedAllocation | None, str]:
        """What all could open; or nothing, and why."""
        rows = self._tell(self._offer(memory), texts.NAME)
        why = _first(rows, self._transport.neighbours) or _unlike(rows, self._transport.neighbours)
        if why:
            return None, why
        names = [bytes.fromhex(row["name"]) for row in rows]
        pieces, opened, error = self._open_all(names, memory)
        why = _first(self._tell({"error": error}, texts.OPEN), self._transport.neighbours)
        if why:
            self._close(opened)
            self._meet(texts.CLOSE)
            return None, why
        return SharedAllocation(self._runtime, pieces, self._own, opened), ""

    def _open_all(self, names: list[bytes], memory) -> tuple[list, list[bytes], str]:
        """The pieces, the names of those that were opened for it, and what went wrong."""
        pieces, opened = [], []
        for place, name in enumerate(names):
            if place == self._own:
                pieces.append(memory)
                continue
            try:
                pieces.append(self._opened.open(name, memory.size))
            except (DeviceError, OSError) as error:
                owner = peers([self._transport.neighbours[place]])
                return pieces, opened, texts.CANNOT_OPEN(peer=owner, error=error)
            opened.append(name)
        return pieces, opened, ""

    def _offer(self, memory) -> dict:
        try:
            name = self._runtime.share(memory).hex()
        except (DeviceError, OSError) as error:
            return {"error": texts.CANNOT_NAME(error=error)}
        return {"error": "", "name": name, "nbytes": memory.size, "space": _namespace()}

    def _close(self, names: list[bytes]) -> None:
        for name in names:
            self._opened.close(name)

    def _tell(self, row: dict, what: str) -> list[dict]:
        """Every rank's row, by place."""
        row["error"] = row["error"][: ROW_BYTES // 8]  # JSON takes up to six bytes a character
        text = json.dumps(row).encode()
        self._board[self._own] = np.frombuffer(text.ljust(ROW_BYTES), np.uint8)
        self._meet(what)
        rows = [json.loads(told.tobytes()) for told in self._board]
        self._meet(what)  # nobody writes the next before all have read this
        return rows

    def _meet(self, what: str) -> None:
        def awaited() -> str:
            late = peers(self._transport.neighbours[place] for place in self._lane.late())
            return texts.AWAITED_NEIGHBOURS(peers=late, step=what)

        self._lane.advance()
        wait_for(self._lane.reached, MEET_S, awaited, patience=self._transport.patience)

    # ── the trial ─────────────────────────────────────────────────────────────────────────────────────────
    def _probe(self) -> str:
        """Why not all ranks read and write one another's memory; "" where they do."""
        memory = self._runtime.whole(GRAIN_BYTES)
        self._upload(np.full(memory.size, 1 + self._own % 250, np.uint8), memory)
        shared, why = self._exchange(memory)
        if shared is None:
            return why
        pieces, why = shared.peer_views(memory), ""
        for what, trial in ((texts.READ, self._read), (texts.WRITE, self._write), (texts.READ_WRITTEN, self._written)):
            rows = self._tell({"error": _tried(trial, pieces)}, what)
            why = _first(rows, self._transport.neighbours)
            if why:
                break
        self._close(shared.names)
        self._meet(texts.CLOSE)
        return why

    def _read(self, pieces: list) -> str:
        for place, piece in enumerate(pieces):
            if not (self._download(piece) == 1 + place % 250).all():
                return texts.READS_OTHERWISE(peer=peers([self._transport.neighbours[place]]))
        return ""

    def _write(self, pieces: list) -> str:
        for piece in pieces:
            self._upload(np.full(1, 255 - self._own % 250, np.uint8), piece[self._own : self._own + 1])
        return ""

    def _written(self, pieces: list) -> str:
        found = self._download(pieces[self._own])[: len(pieces)]
        late = [place for place in range(len(pieces)) if found[place] != 255 - place % 250]
        return texts.NOT_WRITTEN(peers=peers(self._transport.neighbours[p] for p in late)) if late else ""

    def _upload(self, host: np.ndarray, array) -> None:
        self._runtime.upload(host, array, self._stream)
        self._stream.synchronize()

    def _download(self, array) -> np.ndarray:
        host = np.zeros(array.size, np.uint8)
        self._runtime.download(array, host, self._stream)
        return host


def _tried(trial, pieces: list) -> str:
    """What is wrong; also where the device itself says so."""
    try:
        return trial(pieces)
    except DeviceError as error:
        return str(error)


def _namespace() -> str:
    try:
        return os.readlink(NAMESPACE)
    except OSError:
        return ""


def _first(rows: list[dict], neighbours) -> str:
    """The first rank's error, with the ranks that have it."""
    error = next((row["error"] for row in rows if row["error"]), "")
    alike = [rank for rank, row in zip(neighbours, rows, strict=True) if row["error"] == error]
    return error and texts.ON_RANKS(error=error, peers=peers(alike))


def _unlike(rows: list[dict], neighbours) -> str:
    if len({row["space"] for row in rows}) > 1:
        return texts.OTHER_NAMESPACES(peers=peers(neighbours))
    sizes = sorted({row["nbytes"] for row in rows})
    return texts.SIZES_OF_NODE(least=sizes[0], most=sizes[-1]) if len(sizes) > 1 else ""
