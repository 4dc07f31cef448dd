"""The API for other programs: the all-reduce of an array, in one line, and the other collectives.

::

    from ringtrain import Communicator

    with Communicator() as communicator:
        mean = communicator.allreduce(array, "mean")

Every call but ``rank``, ``size``, ``send`` and ``recv`` is collective: all ranks make the same calls in the same order.
"""

import math
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np

from ringtrain.allreduce.catalogue import AUTO, check_algorithm
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.allreduce.wire_formats import NONE, check_wire
from ringtrain.api.collective_runs import CollectiveRuns
from ringtrain.api.libraries import lend
from ringtrain.api.memory import STAGING_BYTES, Memory
from ringtrain.api.methods import CommunicatorMethods
from ringtrain.api.plan import AllReducePlan, PlanBuilder, PlanCache, PreparedReduction, StreamPlan, make_allreduce_plan
from ringtrain.api.progress import ProgressThread
from ringtrain.api.repeated import PersistentAllReduce
from ringtrain.api.request import (
    Agreement,
    Request,
    carrier_of,
    check_out,
    check_request,
    check_writable_array,
    copy_if_aliased,
    type_name,
)
from ringtrain.api.streaming import SameArrays
from ringtrain.api.usable import LEAVING, Usable
from ringtrain.errors import UsageError, everywhere
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Transport
from ringtrain.transport.world import connect

DEADLINE_S = 600.0


class Communicator(CommunicatorMethods):
    """The ranks of an mpi4py communicator, by default of the world. Collective to make. A context manager.

    comm:              an mpi4py intracommunicator, which is duplicated; or a transport, which is used directly
    algorithm:         default algorithm: a name among ``ringtrain bench-allreduce``'s; auto takes the fastest for the
                       size
    wire:              default type of messages: none, float16, bfloat16
    tuning:            the file of ``ringtrain tune`` for auto; by default that of RINGTRAIN_TUNING, or in its usual
                       place
    check_collectives: whether collectives are numbered and compared (docs/errors.md): errors then name the ranks that
                       differ or do not come, and a rank that is stuck inside the MPI ends with all others
    deadline_s:        how long to wait for ranks without progress, before StalledError

    ``bytes_sent``: by this rank, in all-reduces, without those that the MPI's own carries.

    Not thread-safe: one thread at a time calls it. Any thread may test a Work and wait for it. Raises UsageError.
    """

    def __init__(
        self,
        comm=None,
        algorithm: str = AUTO,
        *,
        wire: str = NONE,
        tuning=None,
        check_collectives: bool = False,
        deadline_s: float = DEADLINE_S,
    ):
        check_wire(wire)
        check_algorithm(algorithm, wire != NONE)
        self._owned = not isinstance(comm, Transport)
        self._transport = connect(comm=comm) if self._owned else comm
        self._algorithm, self._wire = algorithm, wire
        self._asked_tuning, self._checks = tuning, check_collectives
        self.rank, self.size = self._transport.rank, self._transport.size
        self._memory = Memory(self._transport)
        known = find_tuning(self._transport, tuning)
        if known.remark and self.rank == 0:  # of a file in the usual place that does not fit
            warnings.warn(known.remark, stacklevel=2)
        self._tuning = known.table
        self._guard = Guard(self._transport, deadline_s) if check_collectives and self.size > 1 else None
        self._agreement = Agreement(self._transport, self._guard, deadline_s)
        self._builder = PlanBuilder(self._transport, self._tuning, self._guard, self._agreement)
        # Making one of the first is collective, so all ranks drop the same. Streams are looked up by some ranks alone.
        # Nothing here holds this object itself, so that __del__ comes at once.
        self._plans: PlanCache[Request, AllReducePlan] = PlanCache(self._builder.release)
        self._stream_plans: PlanCache[Request, StreamPlan] = PlanCache(self._builder.release)
        self._same = SameArrays()
        self._usable = Usable(self._same.clear)
        self._progress = ProgressThread(self._transport, self._usable)
        self._messages = self._transport.tag_space()
        self._runs = CollectiveRuns(self._transport, self._memory, self._builder, self._agreement, self._same.clear)
        self._flying: set[PersistentAllReduce] = set()
        self._closed = False
        self.bytes_sent = 0
        LEAVING.add(self)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:  # closing is collective, and after an error the other ranks may not come
            self.close()
        else:
            self._progress.stop()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._usable.why_not and not self._progress.ending:
            text = (
                f"the communicator of rank {self.rank} of {self.size} is dropped and not closed, and its thread and "
                "memory stay: close() it on all ranks, or use it in a with statement"
            )
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def close(self) -> None:
        """Release everything, when nothing is in flight any more; collective. Arrays of :meth:`empty` must not be
        touched afterwards: their memory is gone.

        Raises UsageError while a prepared reduction is in flight, and the error of an operation that was not waited
        for.
        """
        if self._closed:
            return
        if not self._usable.why_not:
            self._check_idle("close")
            self._progress.drain()
        self._closed = True
        self._usable.end("this communicator is closed: make another")
        self._progress.close()
        self._plans.clear()
        self._stream_plans.clear()
        self._memory.close()
        self._runs.clear()
        if self._guard is not None:
            self._guard.close()
        if self._owned:
            self._transport.close()

    def set_deadline(self, deadline_s: float) -> None:
        """Wait so long for ranks without progress from now on; the same on all ranks."""
        self._agreement.deadline_s = deadline_s
        if self._guard is not None:
            self._guard.deadline_s = deadline_s

    def group(self, ranks: Sequence[int], *, deadline_s: float | None = None, tag: int = 0) -> "Communicator | None":
        """Return a communicator of these ranks of this one, in this order, with the settings of this one; None on a
        rank that is not among them. Collective over these ranks alone. Close it before this one. Raises UsageError.

        deadline_s: of the group; None for that of this communicator
        tag:        at most 32767; threads that make groups of one communicator at once give different ones. Except with
                    tag 0 it does not wait for what is in flight
        """
        self._usable.check()
        if not tag:
            self._progress.settle()
        ranks = [int(rank) for rank in ranks]
        if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.size)):
            raise UsageError(f"a group needs ranks of this communicator, 0 to {self.size - 1}, each once: got {ranks}")
        with self._usable:
            transport = self._transport.group(ranks, tag)
        if transport is None:
            return None
        group = Communicator(
            transport,
            self._algorithm,
            wire=self._wire,
            tuning=self._asked_tuning,
            check_collectives=self._checks,
            deadline_s=deadline_s or self._agreement.deadline_s,
        )
        group._owned = True
        return group

    def allreduce(
        self,
        array,
        op: str = "sum",
        *,
        out=None,
        algorithm: str | None = None,
        wire: str | None = None,
        reproducible: bool = False,
        async_op: bool = False,
    ):
        """Return the elementwise ``op`` of every rank's array, with the same bits on all ranks: a new array of the same
        library, type and shape on the same device; or ``out``, which may be the array itself.

        array: of NumPy, PyTorch, JAX, CuPy, or any array in host memory that speaks DLPack (then the result is
               NumPy's); float16, bfloat16, float32, float64, int32 or int64; any shape and strides, the shape the same
               on all ranks
        op:    sum, mean, max, min

        With ``reproducible`` the first axis of the array counts this rank's shards, as many on each rank; the result is
        over all shards, of the shape of one, and has the same bits at any number of ranks that divides the shards.
        ``mean`` divides by the shards.

        With ``out`` in memory of :meth:`empty` the reduction works in place. Other arrays are streamed within a node;
        between nodes they are copied into such memory and out again, segment by segment. With ``async_op`` it returns a
        :class:`ringtrain.api.work.Work`, whose ``wait()`` returns the result. Raises UsageError, StalledError.
        """
        again = out is array and not (algorithm or wire or reproducible or async_op)
        if again and self._ran_again(array, op):
            return out
        if reproducible:
            return self._reduce_shards(array, op, out, algorithm, wire or self._wire, async_op)
        return self._reduce_array(array, op, out, algorithm, wire, async_op, again)

    def _reduce_array(self, array, op: str, out, algorithm: str | None, wire: str | None, async_op: bool, again: bool):
        """As :meth:`allreduce`, which stays without inner functions: they make its short way twice as long. ``again``:
        whether the next call of this kind on this array may take that way."""
        self._usable.check()
        borrowed = lend(array)
        taken = borrowed if out is None or out is array else lend(out)
        algorithm, wire = algorithm or self._algorithm, wire or self._wire
        numbers = check_request(borrowed.dtype, op, algorithm, wire)
        if out is None:
            target = np.empty(borrowed.host.shape, numbers.storage)
        else:
            check_out(taken, borrowed.dtype, borrowed.host.shape)
            target = taken.host
        request = self._request(target, borrowed.dtype, op, algorithm, wire)
        source = copy_if_aliased(borrowed.host, target)

        def run():
            plan = self._reduce(request, source, target)
            if out is None:
                return borrowed.like(target)
            taken.settle()
            if again and isinstance(plan, StreamPlan):
                stream = self._builder.stream
                self._same.keep(array, target, op, lambda arrays: stream(request).bind(target, arrays))
            return out

        return self._progress.perform(request, run, async_op)

    def prepare(
        self, array, op: str = "sum", *, algorithm: str | None = None, wire: str | None = None
    ) -> PersistentAllReduce:
        """Return the all-reduce of this array in place, which can be started many times: ``start()``, ``test()``,
        ``wait()``.

        It holds memory of the array's size, unless the array is one of :meth:`empty`, until the communicator is closed.
        Raises UsageError.
        """
        self._progress.settle()
        borrowed = lend(array)
        host, algorithm, wire = borrowed.host, algorithm or self._algorithm, wire or self._wire
        check_request(borrowed.dtype, op, algorithm, wire)
        check_writable_array(host, "the array")
        request = self._request(host, borrowed.dtype, op, algorithm, wire)
        with self._usable:
            self._agreement.on(f"prepare, {request}")
            ours = request.position is not None
            span = host.reshape(-1) if ours else self._memory.allocate(host.size, request.carrier.storage)
            prepared = self._builder.prepare(request, span)
        borrow = None if ours else partial(lend, array)
        return PersistentAllReduce(prepared, array, borrow, self._progress, self._flying, self._agreement)

    def empty(self, shape, dtype="float32") -> np.ndarray:
        """Return an array of zeros in the memory that the transport moves fastest: as ``out``, it is reduced without
        copies.

        bfloat16 has type uint16 there, to be viewed: ``torch.from_numpy(x.view("int16")).view(torch.bfloat16)``. The
        memory lasts until the communicator is closed. Raises UsageError.
        """
        self._progress.settle()
        numbers = TYPES[type_name(dtype)]
        shape = tuple(int(length) for length in np.atleast_1d(np.array(shape, int)))
        if min(shape, default=0) < 0:
            raise UsageError(f"an array cannot have the shape {list(shape)}: lengths begin at 0")
        with self._usable:
            self._agreement.on(f"empty, {numbers.name} {list(shape)}")
            return self._memory.allocate(math.prod(shape), numbers.storage).reshape(shape)

    def register(self, array: np.ndarray, path: str, offset: int = 0) -> bool:
        """Make memory that exists the communicator's, as if it were of :meth:`empty`: contiguous arrays in it, of any
        type, are reduced where they lie.

        array:  contiguous and writable, of 16 bytes or more, as many on all ranks, in a shared mapping of a file
        path:   the file, as the other ranks of this node can open it: ``/proc/PID/fd/N`` while descriptor N is open,
                which it need not be afterwards
        offset: of the array's first element in the file, in bytes

        Returns whether all ranks could map the arrays of their node; if not, nothing has changed. The array's first
        bytes change during the call, so nothing else may use it then. It is held until :meth:`unregister` or the
        communicator's end.
        """
        self._progress.settle()
        with self._usable:
            self._agreement.on("register")
            self._same.clear()  # what was streamed may now be reduced where it lies
            return self._memory.register(array, path, offset)

    def unregister(self, array: np.ndarray) -> None:
        """Give back an array of :meth:`register`. Its prepared all-reduces must not be started again.

        Raises UsageError if it is not registered, and while a prepared reduction is in flight.
        """
        self._progress.settle()
        number = self._memory.registered(array)
        with self._usable:
            self._agreement.on(f"unregister, block {number}")
            if number is None:
                raise everywhere(
                    UsageError(
                        f"this array of {array.nbytes} bytes is not registered: give the one that register() was given"
                    )
                )
            self._check_idle("unregister")
            self._plans.drop(lambda request: request.position is not None and request.position[0] == number)
            self._memory.unregister(number)

    def _request(self, target: np.ndarray, dtype: str, op: str, algorithm: str, wire: str) -> Request:
        """Return the request of a result in ``target``, which is in place where it is added in its own type."""
        position = self._memory.position(target) if carrier_of(dtype, op) is TYPES[dtype] else None
        return Request(target.shape, dtype, op, algorithm, wire, position)

    def _reduce(self, request: Request, source: np.ndarray, target: np.ndarray) -> AllReducePlan | StreamPlan:
        flat = target.reshape(-1) if target.flags.c_contiguous else np.empty(target.size, target.dtype)
        plan = self._plan_for(request, flat)
        plan.run(source.reshape(-1), flat, self._agreement.deadline_s)
        self.bytes_sent += plan.bytes_sent
        if not target.flags.c_contiguous:
            np.copyto(target, flat.reshape(target.shape))
        return plan

    def _plan_for(self, request: Request, flat: np.ndarray) -> AllReducePlan | StreamPlan:
        plan = self._stream_plans.find(request) or self._plans.find(request)
        if plan is not None:
            return plan
        if self._builder.is_streamed(request):
            return self._stream_plans.get(request, lambda: self._builder.stream(request))
        return self._plans.get(request, lambda: self._make_plan(request, flat))

    def _make_plan(self, request: Request, flat: np.ndarray) -> AllReducePlan:
        self._agreement.on(f"allreduce, {request}")
        storage = request.carrier.storage

        def part(count: int) -> PreparedReduction:
            span = self._memory.staging(count, storage) if request.position is None else flat
            return self._builder.prepare(request, span)

        return make_allreduce_plan(
            part, flat.size, STAGING_BYTES // storage.itemsize if request.position is None else flat.size
        )

    def _check_idle(self, call: str) -> None:
        if self._flying:
            raise UsageError(f"{call}() while a prepared reduction is under way: wait() for it first")

    def leave(self, why: str) -> None:
        """Be of no use any more, in a process that is forked. Not collective."""
        self._closed = True
        self._usable.end(why)
        self._progress.leave(UsageError(why))

    def abandon(self, why: str) -> None:
        """Be of no use any more, after the death of a rank. Not collective."""
        self._progress.stop()
        self.leave(why)
