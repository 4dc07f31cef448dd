"""PyTorch's process group over a communicator of ringtrain."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.autograd.profiler import record_function
from torch.distributed.constants import default_pg_timeout

from ringtrain.errors import StalledError, UsageError
from ringtrain.torch.apart import ApartCommunicator
from ringtrain.torch.call_order import CallOrder
from ringtrain.torch.shared_buckets import SharedBuckets
from ringtrain.torch.tensors import FOLDS, HostTensor, Operand, fold, operation, put
from ringtrain.torch.work import CollectiveWork, raising_torchs

NAME = "ringtrain"


def _runs_on(opts) -> bool:
    """Return whether the caller goes on before the collective is done: PyTorch sets asyncOp, in its C++ code by
    default."""
    return getattr(opts, "asyncOp", True)


class RingtrainGroup(dist.ProcessGroup):
    """A process group whose collectives a :class:`ringtrain.Communicator` runs. Threads may share it.

    options:      of PyTorch's registry of backends
    reproducible: whether sums are made in one tree over the ranks, wherever these are

    A collective that its caller waits for runs in the caller's thread, unless others are in flight; an asynchronous one
    in the communicator's progress thread. Where PyTorch has two names for a method, C++ calls one and Python the other.
    """

    def __init__(self, orders: CallOrder, options, reproducible: bool = False):
        super().__init__(orders.communicator.rank, orders.communicator.size)
        self._orders, self._options = orders, options
        self._name = self._description = ""
        self._sequence = self._barriers = 0
        self.shared_buckets = SharedBuckets(orders.communicator)
        self.reproducible = reproducible

    @property
    def order(self) -> CallOrder:
        return self._orders.of_this_thread()

    @property
    def communicator(self):
        return self.order.communicator

    def rank(self) -> int:
        return self._orders.communicator.rank

    def size(self) -> int:
        return self._orders.communicator.size

    def name(self) -> str:
        return NAME

    getBackendName = name

    # C++ would keep these in backends that it has, and there are none.
    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> "RingtrainGroup":
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._options.timeout = timeout
        self.communicator.set_deadline(timeout.total_seconds())

    @property
    def options(self) -> Backend.Options:
        options = Backend.Options(NAME, self._options.timeout)
        options.global_ranks_in_group, options.group_name = self._options.global_ranks_in_group, self._options.group_id
        return options

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives this rank has begun."""
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """It starts with 0 on all ranks."""

    def shutdown(self) -> None:
        """Close the communicators; collective, as PyTorch's own destruction of a group. A second call does nothing."""
        self._orders.close()

    # ── how all run ───────────────────────────────────────────────────────────────────────────────────────
    def _run(self, name: str, opts, calls: Sequence[Callable], finish: Sequence[Callable], value):
        """Return the work of these calls of the communicator, each a function of ``async_op``, then of ``finish``."""
        order = self.order
        runs_on = _runs_on(opts) and not isinstance(order.communicator, ApartCommunicator)
        with raising_torchs(), order.lock, _profiled(name):
            self._sequence += 1
            flights = [call(async_op=runs_on) for call in calls]
            work = CollectiveWork(order, flights if runs_on else (), finish, value)
            if order.coalesced is not None:
                order.coalesced.append(work)
        return work

    def _start_coalescing(self, device) -> None:
        self.order.coalesced = []

    def _end_coalescing(self, device) -> CollectiveWork:
        order = self.order
        works, order.coalesced = order.coalesced or [], None
        flights = [flight for work in works for flight in work.flights]
        return CollectiveWork(order, flights, [work.wait for work in works], [])

    # ── reductions ────────────────────────────────────────────────────────────────────────────────────────
    def allreduce(self, tensors: list[torch.Tensor] | torch.Tensor, opts=None) -> CollectiveWork:
        """``opts`` may be a ReduceOp, as in PyTorch's C++."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = dist.AllreduceOptions() if opts is None else opts
        op = operation(opts)
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            return self._add_sparse(tensors, op, opts)
        if op in FOLDS:
            return self._fold_all(tensors, op, opts)
        operands = [Operand(tensor, op, self.size()) for tensor in tensors]
        calls = [self._sum_of(each.numbers, each.op) for each in operands]
        return self._run("all_reduce", opts, calls, [each.settle for each in operands], tensors)

    def _sum_of(self, numbers: np.ndarray, op: str) -> Callable[[], object]:
        """Return the all-reduce in place of an array."""
        if self.reproducible and op in ("sum", "mean"):
            return partial(self.communicator.allreduce, numbers[None], op, out=numbers, reproducible=True)
        return partial(self.communicator.allreduce, numbers, op, out=numbers)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts=None) -> CollectiveWork:
        return self.allreduce(tensors, opts)

    def _fold_all(self, tensors, op: str, opts) -> CollectiveWork:
        """All-reduce by the operands of all ranks, which each rank combines in rank order."""
        gathered = [self._rows_of(tensor) for tensor in tensors]

        def finish() -> None:
            for tensor, (_, rows, like) in zip(tensors, gathered, strict=True):
                folded = fold([_as_tensor(row, like) for row in rows], op)
                tensor.detach().copy_(folded.reshape(tensor.shape))

        return self._run("all_reduce", opts, [call for call, _, _ in gathered], [finish], tensors)

    def _add_sparse(self, tensors, op: str, opts) -> CollectiveWork:
        """Add sparse tensors by the elements of all ranks, of which each is padded to as many as the largest has."""
        if op not in ("SUM", "AVG"):
            raise UsageError(f"{op} of sparse tensors is not reduced: SUM and AVG are; pass tensor.to_dense()")
        gathered = []
        for tensor in tensors:
            elements, counts = tensor.detach().coalesce(), np.empty((self.size(), 1), np.int64)
            with self.order.lock:
                self.communicator.all_gather(np.array([elements._nnz()]), out=counts)
            more = elements.values().new_zeros(int(counts.max()) - elements._nnz(), *elements.values().shape[1:])
            indices = torch.nn.functional.pad(elements.indices(), (0, len(more))).t()
            gathered.append((counts[:, 0], self._rows_of(indices), self._rows_of(torch.cat([elements.values(), more]))))

        def finish() -> None:
            for tensor, (counts, indices, values) in zip(tensors, gathered, strict=True):
                every = [
                    torch.cat(
                        [_as_tensor(row, like).reshape(like.shape)[:n] for n, row in zip(counts, rows, strict=True)]
                    )
                    for _, rows, like in (indices, values)
                ]
                total = torch.sparse_coo_tensor(every[0].t(), every[1], tensor.shape).coalesce()
                with torch.no_grad():  # a sparse tensor's detach() would keep the elements
                    tensor.copy_(total / self.size() if op == "AVG" else total)

        calls = [call for _, indices, values in gathered for call, _, _ in (indices, values)]
        return self._run("all_reduce", opts, calls, [finish], tensors)

    def _rows_of(self, tensor: torch.Tensor) -> tuple[Callable, np.ndarray, torch.Tensor]:
        """Return the all-gather of a tensor's bytes, the rows into which it gathers, and the host's tensor."""
        host = HostTensor(tensor)
        rows = np.empty((self.size(), host.bytes.size), np.uint8)
        call = partial(self.communicator.all_gather, host.bytes, out=rows)
        return call, rows, host.memory

    def reduce(self, tensors: list[torch.Tensor], opts) -> CollectiveWork:
        """All-reduce a copy, of which the root keeps the result."""
        copies = [tensor.detach().clone() for tensor in tensors]
        alone = dist.AllreduceOptions()
        alone.reduceOp, alone.asyncOp = opts.reduceOp, _runs_on(opts)
        inner = self.allreduce(copies, alone)

        def finish() -> None:
            if self.rank() == opts.rootRank:
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.detach().copy_(copy)

        return CollectiveWork(self.order, inner.flights, [inner.wait, finish], tensors)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts=None) -> CollectiveWork:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> CollectiveWork:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        op = operation(opts)
        parts = [self._scattering(output, source, op) for output, source in zip(outputs, inputs, strict=True)]
        return self._run("reduce_scatter", opts, [call for call, _ in parts], [finish for _, finish in parts], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scattering(self, output: torch.Tensor, source: torch.Tensor, op: str) -> tuple[Callable, Callable]:
        """Return a reduce-scatter, and what finishes it."""
        if source.numel() != self.size() * output.numel():
            wanted = self.size() * output.nbytes
            raise _unequal("input", source.nbytes, wanted, "the input has one output for each rank")
        if op in FOLDS:
            call, rows, like = self._rows_of(source)

            def finish() -> None:
                every = [_as_tensor(row, like).reshape(self.size(), -1)[self.rank()] for row in rows]
                output.detach().copy_(fold(every, op).reshape(output.shape))

            return call, finish
        operand = Operand(source.detach().contiguous().reshape(self.size(), -1), op, self.size())
        numbers = operand.numbers
        result = torch.empty(numbers.shape[1:], dtype=numbers.dtype, device=numbers.device)
        call = partial(self.communicator.reduce_scatter, numbers, operand.op, out=result)
        return call, lambda: put(operand.finish(result), output)

    def reduce_scatter(self, outputs: list, inputs: list, opts=None) -> CollectiveWork:
        for parts in inputs:
            self._check_parts(parts, "input_list")
        rows = [torch.stack([part.detach().reshape(-1) for part in parts]) for parts in inputs]
        return self.reduce_scatter_single_coalesced(outputs, rows, opts)

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────
    def broadcast(self, tensors: list[torch.Tensor], opts=None) -> CollectiveWork:
        opts = dist.BroadcastOptions() if opts is None else opts
        hosts = [HostTensor(tensor, self.rank() == opts.rootRank) for tensor in tensors]
        calls = [partial(self.communicator.broadcast, host.bytes, root=opts.rootRank) for host in hosts]
        settles = [host.settle for host in hosts if self.rank() != opts.rootRank]
        return self._run("broadcast", opts, calls, settles, tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts=None) -> CollectiveWork:
        for parts in outputs:
            self._check_parts(parts, "tensor_list")
        gathered = [self._rows_of(tensor) for tensor in inputs]

        def finish() -> None:
            for parts, (_, rows, like) in zip(outputs, gathered, strict=True):
                for part, row in zip(parts, rows, strict=True):
                    part.detach().copy_(_as_tensor(row, like).reshape(part.shape))

        return self._run("all_gather", opts, [call for call, _, _ in gathered], [finish], outputs)

    def allgather_coalesced(self, outputs, inputs, opts=None) -> CollectiveWork:
        return self.allgather(list(map(list, zip(*outputs, strict=True))), inputs, opts)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts=None) -> CollectiveWork:
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> CollectiveWork:
        calls, hosts = [], []
        for output, source in zip(outputs, inputs, strict=True):
            into, out_of = HostTensor(output, reads=False), HostTensor(source).bytes
            wanted = self.size() * out_of.size
            if into.bytes.size != wanted:
                raise _unequal("output", into.bytes.size, wanted, "the output has one input for each rank")
            rows = into.bytes.reshape(self.size(), out_of.size)
            calls.append(partial(self.communicator.all_gather, out_of, out=rows))
            hosts.append(into)
        return self._run("all_gather", opts, calls, [host.settle for host in hosts], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts) -> CollectiveWork:
        is_root, host = self.rank() == opts.rootRank, HostTensor(inputs[0])
        rows = np.empty((self.size() if is_root else 0, host.bytes.size), np.uint8)
        parts = outputs[0] if is_root else []
        if is_root:
            self._check_parts(parts, "gather_list")

        def finish() -> None:
            for part, row in zip(parts, rows, strict=True):
                part.detach().copy_(_as_tensor(row, host.memory).reshape(part.shape))

        call = partial(self.communicator.gather, host.bytes, root=opts.rootRank, out=rows if is_root else None)
        return self._run("gather", opts, [call], [finish], outputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts) -> CollectiveWork:
        into, rows = HostTensor(outputs[0], reads=False), None
        if self.rank() == opts.rootRank:
            self._check_parts(inputs[0], "scatter_list")
            rows = np.stack([HostTensor(part).bytes for part in inputs[0]])
        call = partial(self.communicator.scatter, rows, root=opts.rootRank, out=into.bytes)
        return self._run("scatter", opts, [call], [into.settle], outputs)

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, out_splits: list[int], in_splits: list[int], opts=None
    ) -> CollectiveWork:
        into, host = HostTensor(output, reads=False), HostTensor(source)
        sent, received = self._byte_counts(host, in_splits, "input"), self._byte_counts(into, out_splits, "output")
        all_to_all = self.communicator.all_to_all
        call = partial(all_to_all, host.bytes, out=into.bytes, send_counts=sent, recv_counts=received)
        return self._run("all_to_all", opts, [call], [into.settle], [output])

    alltoall_base = all_to_all_single

    def _byte_counts(self, host: HostTensor, splits: Sequence[int], name: str) -> list[int]:
        """Return the bytes for each rank of a tensor that is split along its first dimension."""
        nbytes, rows = host.bytes.size, host.memory.shape[0] if host.memory.dim() else 1
        if not splits and rows % self.size() == 0:
            return [nbytes // self.size()] * self.size()
        self._check_parts(splits, f"{name}_split_sizes")
        row = nbytes // rows if rows else 0
        if sum(splits) != rows:
            raise _unequal(name, nbytes, sum(splits) * row, "splits add up to the first dimension")
        return [split * row for split in splits]

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts=None) -> CollectiveWork:
        self._check_parts(outputs, "output_tensor_list")
        self._check_parts(inputs, "input_tensor_list")
        sent = [HostTensor(part).bytes for part in inputs]
        into = [HostTensor(part, reads=False) for part in outputs]
        counts = [host.bytes.size for host in into]
        received = np.empty(sum(counts), np.uint8)

        def finish() -> None:
            for host, part in zip(into, np.split(received, np.cumsum(counts)[:-1]), strict=True):
                host.bytes[:] = part
                host.settle()

        sizes, all_to_all = [part.size for part in sent], self.communicator.all_to_all
        call = partial(all_to_all, np.concatenate(sent), out=received, send_counts=sizes, recv_counts=counts)
        return self._run("all_to_all", opts, [call], [finish], outputs)

    # ── messages and the barrier ──────────────────────────────────────────────────────────────────────────
    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> CollectiveWork:
        host, order = HostTensor(tensors[0]), self.order
        with order.lock:
            flight = order.communicator.send(host.bytes, peer, tag, async_op=True)
        return CollectiveWork(order, [flight], value=tensors)

    def recv(self, tensors: list[torch.Tensor], peer: int | None, tag: int) -> CollectiveWork:
        host, order = HostTensor(tensors[0], reads=False), self.order
        with order.lock:
            flight = order.communicator.recv(host.bytes, peer, tag, async_op=True)
        return CollectiveWork(order, [flight], [host.settle], tensors, lambda: flight.source)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> CollectiveWork:
        return self.recv(tensors, None, tag)

    def barrier(self, opts=None) -> CollectiveWork:
        return self._run("barrier", opts, [self.communicator.barrier], [], [])

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names the first that does not come, or all."""
        timeout = default_pg_timeout if timeout is None else timeout
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self._barriers += 1
        name, store = f"monitored barrier {self._barriers}", self._options.store
        with raising_torchs():
            _monitored_barrier(store, name, self.rank(), self.size(), timeout_s, wait_all_ranks)

    def _check_parts(self, parts: Sequence, name: str) -> None:
        if len(parts) != self.size():
            raise UsageError(
                f"{name} has {len(parts)} parts, and the group has {self.size()} ranks: give one part for each"
            )


def _unequal(name: str, nbytes: int, wanted: int, rule: str) -> UsageError:
    return UsageError(f"{name}: {nbytes:,} bytes, and {wanted:,} are wanted: {rule}")


def _profiled(name: str) -> AbstractContextManager:
    """Give torch.profiler the time of the block. Of a collective that runs on it gets the start alone: an event that
    another thread ends when the profiler has been left crashes PyTorch."""
    return record_function(f"{NAME}:{name}") if torch.autograd._profiler_enabled() else nullcontext()


def _as_tensor(row: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Return bytes as a flat tensor of that type."""
    if not row.size:
        return like.new_empty(0)  # NumPy's stride of no bytes is 0, and PyTorch views only a stride of 1
    return torch.from_numpy(row).view(like.dtype)


def _monitored_barrier(store, name: str, rank: int, size: int, timeout_s: float, wait_all_ranks: bool) -> None:
    """Wait for all ranks by the store alone: where a rank does not come, a collective would hang. Rank 0 names the
    first that does not come in time, with ``wait_all_ranks`` all that do not.

    Raises: StalledError.
    """
    until = time.monotonic() + timeout_s

    def comes(who: int | str) -> bool:
        left_s = max(0.001, until - time.monotonic())  # with 0 PyTorch's FileStore waits for ever
        try:
            store.wait([f"{name}: {who}"], timedelta(seconds=left_s))
        except RuntimeError:  # of FileStore; others raise a DistStoreError, which is one
            return False
        return True

    if rank:
        store.set(f"{name}: {rank}", "")
        if not comes("all") or store.get(f"{name}: all"):
            raise StalledError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0. Please check rank 0 logs for faulty rank"
            )
        return
    late: list[int] = []
    for other in range(1, size):
        if (wait_all_ranks or not late) and not comes(other):
            late.append(other)
    store.set(f"{name}: all", "late" if late else "")
    if late:
        named = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, late))}"
        raise StalledError(
            f"{named} failed to pass monitoredBarrier in {timeout_s:g} s: Rank 0 timed out in monitoredBarrier. See "
            "where they are"
        )
