"""The collectives and messages of a communicator, on arrays of any library."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.api.collective_runs import AUTO, BARRIER, IN_PARTS, AgreedCall, CollectiveRuns, contiguous
from ringtrain.api.libraries import BorrowedArray, lend
from ringtrain.api.progress import ProgressThread
from ringtrain.api.request import Agreement, check_operation, check_out, check_writable_array
from ringtrain.api.streaming import SameArrays
from ringtrain.api.usable import Usable
from ringtrain.collectives.algorithms.canonical import NAME
from ringtrain.collectives.execution.reduction import NATIVE
from ringtrain.collectives.stream import STREAM
from ringtrain.errors import UsageError
from ringtrain.transport import native_call
from ringtrain.transport.base import MessageHandle, TagSpace

LAST_TAG = 32767  # of any MPI


class CommunicatorMethods:
    """The collectives other than the all-reduce, and messages, which are no collectives: only the two ranks call.
    :class:`ringtrain.Communicator` has them.

    With ``async_op=True`` each returns a :class:`ringtrain.api.work.Work`, whose ``wait()`` returns the result. Arrays
    are of the libraries of ``allreduce``, with any strides, and the result is of the library of the array. Those that
    only move elements take all types of NumPy but objects. ``algorithm`` names a schedule that has two halves, mpi, or
    stream; None and auto take the fastest.
    """

    rank: int
    size: int
    _progress: ProgressThread
    _runs: CollectiveRuns
    _usable: Usable
    _same: SameArrays
    _messages: TagSpace
    _agreement: Agreement

    def algorithm_of(self, collective: str, dtype: str = "float32", algorithm: str | None = None) -> str:
        """Return the algorithm that a collective other than the all-reduce takes, such as "all-gather", where
        ``algorithm`` is asked for. Raises UsageError."""
        if collective == BARRIER:
            return STREAM if self._agreement.has_window else NATIVE
        return self._runs.choose(algorithm, collective.replace("-", "_"), dtype)

    def barrier(self, *, async_op: bool = False):
        """Wait for all ranks. Raises StalledError."""
        return self._progress.perform(BARRIER, self._runs.barrier, async_op)

    def broadcast(self, array, root: int = 0, *, algorithm: str | None = None, async_op: bool = False):
        """Overwrite the array by that of ``root`` on all ranks, and return it. Raises UsageError, StalledError."""
        again = None if algorithm or async_op else ("broadcast", root)
        if again and self._ran_again(array, again):
            return array
        self._check_root(root)
        borrowed = lend_bytes(array)
        if self.rank != root:
            check_writable_array(borrowed.host, "the array")
        call = self._call("broadcast", borrowed, algorithm=algorithm, root=root)

        def run():
            self._runs.broadcast(call, borrowed.host)
            if self.rank != root:
                borrowed.settle()
            if again and self._runs.can_repeat(call):
                bound = partial(self._runs.bound, call, borrowed.host, borrowed.host)
                self._same.keep(array, borrowed.host, again, bound)
            return array

        return self._progress.perform(call, run, async_op)

    def all_gather(self, array, *, out=None, algorithm: str | None = None, async_op: bool = False):
        """Return the arrays of all ranks, of shape (size, \\*shape), on all ranks. Raises UsageError, StalledError."""
        again = None if out is None or algorithm or async_op else ("all_gather",)
        if again and self._ran_again(array, again, out):
            return out
        borrowed = lend_bytes(array)
        call = self._call("all_gather", borrowed, algorithm=algorithm)
        result = CollectiveResult(borrowed, (self.size, *borrowed.host.shape), out)
        return self._perform(call, self._runs.all_gather, borrowed.host, result, async_op, again and (again, array))

    def reduce_scatter(self, array, op: str = "sum", *, out=None, algorithm: str | None = None, async_op: bool = False):
        """Return row ``rank`` of the elementwise ``op`` of every rank's array, whose first axis has a row for each
        rank. Types and operations are those of ``allreduce``. Raises UsageError, StalledError."""
        again = None if out is None or algorithm or async_op else ("reduce_scatter", op)
        if again and self._ran_again(array, again, out):
            return out
        borrowed = lend(array)
        check_operation(borrowed.dtype, op)
        self._check_rows(borrowed.host, "reduce_scatter")
        call = self._call("reduce_scatter", borrowed, algorithm=algorithm, op=op)
        result = CollectiveResult(borrowed, borrowed.host.shape[1:], out, lend)
        return self._perform(call, self._runs.reduce_scatter, borrowed.host, result, async_op, again and (again, array))

    def reduce(self, array, root: int = 0, op: str = "sum", *, out=None, async_op: bool = False):
        """Return the elementwise ``op`` of every rank's array on ``root``, and None on the others. Types and operations
        are those of ``allreduce``. Raises UsageError, StalledError."""
        again = None if async_op or (out is None and self.rank == root) else ("reduce", root, op)
        if again and self._ran_again(array, again, out):
            return out
        self._check_root(root)
        borrowed = lend(array)
        check_operation(borrowed.dtype, op)
        call = self._call("reduce", borrowed, op=op, root=root)
        if self.rank == root:
            result = CollectiveResult(borrowed, borrowed.host.shape, out, lend)
            return self._perform(call, self._runs.reduce, borrowed.host, result, async_op, again and (again, array))
        nothing, source = np.empty(0, borrowed.host.dtype), contiguous(borrowed.host)

        def run() -> None:
            self._runs.reduce(call, source, nothing)
            if again and source is borrowed.host and out is None and self._runs.can_repeat(call):
                self._same.keep(array, source, again, partial(self._runs.bound, call, source, nothing))

        return self._progress.perform(call, run, async_op)

    def _reduce_shards(self, array, op: str, out, algorithm: str | None, wire: str, async_op: bool):
        """Run ``allreduce`` with ``reproducible=True``."""
        borrowed = lend(array)
        check_operation(borrowed.dtype, op)
        if algorithm not in (None, AUTO, NAME) or wire != NONE:
            raise UsageError(
                f"reproducible=True adds in one tree, and algorithm={algorithm or AUTO!r} over wire={wire!r} does "
                "not: leave algorithm out, and give wire='none'"
            )
        if not borrowed.host.shape or not len(borrowed.host):
            raise UsageError(
                "reproducible=True adds this rank's shards, the rows of the first axis, and the shape is "
                f"{list(borrowed.host.shape)}: give one or more"
            )
        call = AgreedCall("reproducible allreduce", borrowed.dtype, borrowed.host.shape, NAME, op)
        result = CollectiveResult(borrowed, borrowed.host.shape[1:], out, lend)
        return self._perform(call, self._runs.reduce_shards, borrowed.host, result, async_op)

    def gather(self, array, root: int = 0, *, out=None, async_op: bool = False):
        """Return the arrays of all ranks, of shape (size, \\*shape), on ``root``, and None on the others. Raises
        UsageError, StalledError."""
        self._check_root(root)
        borrowed = lend_bytes(array)
        call = self._call("gather", borrowed, root=root)
        if self.rank != root:
            run = partial(self._runs.gather_or_scatter, call, contiguous(borrowed.host), native_call.nothing())
            return self._progress.perform(call, run, async_op)
        result = CollectiveResult(borrowed, (self.size, *borrowed.host.shape), out)
        return self._perform(call, self._runs.gather_or_scatter, borrowed.host, result, async_op)

    def scatter(self, array=None, root: int = 0, *, out=None, async_op: bool = False):
        """Return row ``rank`` of the array of ``root``, whose first axis has a row for each rank. The other ranks give
        None and ``out``, which tells the shape and type of a row. Raises UsageError, StalledError."""
        self._check_root(root)
        if (array is None) == (self.rank == root) or (array is None and out is None):
            raise UsageError(
                f"scatter gets its array on rank {root}: the others give out=, which tells the shape and type"
            )
        borrowed = lend_bytes(out if array is None else array)
        if array is not None:
            self._check_rows(borrowed.host, "scatter")
        shape = borrowed.host.shape if array is None else borrowed.host.shape[1:]
        call = self._call("scatter", borrowed, shape, root=root)
        result = CollectiveResult(borrowed, shape, out)
        rows = native_call.nothing() if array is None else borrowed.host
        return self._perform(call, self._runs.gather_or_scatter, rows, result, async_op)

    def all_to_all(
        self,
        array,
        *,
        out=None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        async_op: bool = False,
    ):
        """Return the rows that all ranks have for this one, in the order of ranks. The first axis of the array has the
        rows for rank 0, then those for rank 1, and so on: equal parts, or ``send_counts`` rows for each rank and
        ``recv_counts`` rows from each. Raises UsageError, StalledError."""
        again = None if out is None or send_counts or recv_counts or async_op else ("all_to_all",)
        if again and self._ran_again(array, again, out):
            return out
        borrowed = lend_bytes(array)
        sent, received = self._counts(borrowed.host, send_counts, recv_counts)
        row = borrowed.host.shape[1:]
        shape = row if send_counts is not None else borrowed.host.shape
        kind = "all_to_all" if send_counts is None else IN_PARTS
        call = self._call(kind, borrowed, shape, NATIVE if kind == IN_PARTS else None)
        result = CollectiveResult(borrowed, (sum(received), *row), out)
        nbytes = borrowed.host.itemsize * int(np.prod(row, dtype=int))
        counts = [[count * nbytes for count in part] for part in (sent, received)]
        run = partial(self._runs.all_to_all, counts=counts)
        return self._perform(call, run, borrowed.host, result, async_op, again and (again, array))

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────
    def send(self, array, peer: int, tag: int = 0, *, async_op: bool = False):
        """Send the elements of an array of any type but objects to rank ``peer``. It may wait for the peer to receive.
        Messages of one tag between two ranks keep their order. Raises UsageError, StalledError."""
        self._check_message(peer, tag, async_op)
        data = contiguous(lend_bytes(array).host)
        return self._move(
            f"send to rank {peer} (tag {tag})", self._messages.send(data, peer, tag), lambda: None, async_op
        )

    def recv(self, array, peer: int | None = None, tag: int = 0, *, async_op: bool = False):
        """Receive into the array a message of as many bytes from rank ``peer``, or from any rank, and return the array.
        The Work's ``source`` says who has sent it. Raises UsageError, StalledError, TransportError for a message of
        another length."""
        self._check_message(peer, tag, async_op)
        borrowed = lend_bytes(array)
        check_writable_array(borrowed.host, "the array")
        data = contiguous(borrowed.host)

        def finish():
            if data is not borrowed.host:
                borrowed.host[...] = data
            borrowed.settle()
            return array

        return self._move(f"recv (tag {tag})", self._messages.receive(data, peer, tag), finish, async_op)

    def _move(self, called: str, handle: MessageHandle, finish, async_op: bool):
        if async_op:
            return self._progress.deliver(called, handle, finish, self._agreement.deadline_s)
        with self._usable:
            handle.wait(self._agreement.deadline_s)
        return finish()

    def _call(self, kind: str, borrowed: BorrowedArray, shape=None, algorithm=None, op="", root=None) -> AgreedCall:
        """Return the call on an array. shape: that all ranks have alike; None: the array's"""
        name = self._runs.choose(algorithm, kind, borrowed.dtype)
        return AgreedCall(kind, borrowed.dtype, borrowed.host.shape if shape is None else shape, name, op, root)

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────────
    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise UsageError(f"root={root}: ranks are 0 to {self.size - 1}")

    def _check_rows(self, host: np.ndarray, call: str) -> None:
        if host.shape[:1] != (self.size,):
            raise UsageError(
                f"the first axis of the array must have one row for each of {self.size} ranks: {call} got "
                f"{list(host.shape)}"
            )

    def _check_message(self, peer: int | None, tag: int, async_op: bool) -> None:
        self._usable.check()
        self._progress.check_call(async_op)
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            raise UsageError(f"peer={peer}: the other ranks are 0 to {self.size - 1}, without this rank, {self.rank}")
        if not 0 <= tag <= LAST_TAG:
            raise UsageError(f"tag={tag}: a tag is 0 to {LAST_TAG}, since every MPI has these")

    def _counts(
        self, host: np.ndarray, send_counts: Sequence[int] | None, recv_counts: Sequence[int] | None
    ) -> tuple[list[int], list[int]]:
        """Return the rows to each rank and from each rank."""
        if host.ndim == 0:
            raise UsageError("all_to_all needs an array with rows, and this one has the shape []")
        if (send_counts is None) != (recv_counts is None):
            raise UsageError("give send_counts and recv_counts, both or neither: a rank must be told what it gets")
        rows = len(host)
        if send_counts is None or recv_counts is None:
            if rows % self.size:
                raise UsageError(
                    f"{rows} rows are not equal parts for {self.size} ranks: give send_counts and recv_counts, or a "
                    f"multiple of {self.size}"
                )
            return [rows // self.size] * self.size, [rows // self.size] * self.size
        sent, received = [int(count) for count in send_counts], [int(count) for count in recv_counts]
        for name, counts, wanted in (("send_counts", sent, rows), ("recv_counts", received, sum(received))):
            if len(counts) != self.size or min(counts) < 0 or sum(counts) != wanted:
                raise UsageError(
                    f"{name}={counts} do not fit: wanted {self.size} numbers from 0, one for each rank, of {wanted} "
                    "rows together"
                )
        return sent, received

    def _perform(
        self,
        call: AgreedCall,
        run: Callable,
        host: np.ndarray,
        result: "CollectiveResult",
        async_op: bool,
        again: tuple[tuple, Any] | None = None,
    ):
        """Run ``run(call, source, target)``, and deliver the result. ``again``: by what the call is known when it comes
        again, and its array."""
        source = result.apart(host)

        def action():
            run(call, source, result.host)
            delivered = result.deliver()
            if again and source is host and result.is_direct and self._runs.can_repeat(call):
                key, array = again
                self._same.keep(
                    array, source, key, partial(self._runs.bound, call, source, result.host), delivered, result.host
                )
            return delivered

        return self._progress.perform(call, action, async_op)

    def _ran_again(self, array, key: Hashable, out=None) -> bool:
        """Run the streamed call of arrays that came with it before, which needs no checks. Whether they did."""
        if not self._progress.idle:
            return False
        same = self._same.find(array, key, out)
        if same is None:
            return False
        try:
            same.run(self._agreement.deadline_s)
        except BaseException as error:
            self._usable.end_by(error)
            raise
        return True


def lend_bytes(array) -> BorrowedArray:
    """Return the array as host memory whose bytes can be moved: its type has their order, and the fields of records.
    Raises UsageError."""
    borrowed = lend(array)
    dtype = borrowed.host.dtype
    if dtype.hasobject:
        raise UsageError(
            f"elements of type {borrowed.dtype} are references to objects, whose bytes mean nothing on another rank"
        )
    return borrowed if dtype.isnative and dtype.names is None else replace(borrowed, dtype=str(dtype))


class CollectiveResult:
    """The result of a collective: contiguous host memory, which becomes ``out`` or a new array like the given one.

    host: the memory; that of ``out`` if it has no gaps
    """

    def __init__(self, borrowed: BorrowedArray, shape: tuple[int, ...], out, lend: Callable = lend_bytes):
        self._borrowed, self._out = borrowed, out
        self._taken = None if out is None else lend(out)
        if self._taken is None:
            self.host = np.empty(shape, borrowed.host.dtype)
            return
        check_out(self._taken, borrowed.dtype, shape)
        target = self._taken.host
        self.host = target if target.flags.c_contiguous else np.empty(shape, target.dtype)

    @property
    def is_direct(self) -> bool:
        """Whether the memory is that of ``out``."""
        return self._taken is not None and self._taken.host is self.host

    def apart(self, source: np.ndarray) -> np.ndarray:
        """Return the source without gaps and apart from the result: itself, or a copy."""
        target = self.host if self._taken is None else self._taken.host
        return source.copy() if np.may_share_memory(source, target) else contiguous(source)

    def deliver(self) -> Any:
        """Return the result, when the host memory has it."""
        if self._taken is None:
            return self._borrowed.like(self.host)
        if self._taken.host is not self.host:
            np.copyto(self._taken.host, self.host)
        self._taken.settle()
        return self._out
