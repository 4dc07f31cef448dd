"""DDP's reducer with a process group of its own, which knows what belongs to the reducer."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from ringtrain.torch.backend import RingtrainGroup
from ringtrain.torch.shared_buckets import SMALLEST_BYTES
from ringtrain.torch.work import CollectiveWork

MOST_QUESTIONS = 100  # of one reducer: a hook may hand over other memory in each iteration


class BucketGroup(RingtrainGroup):
    """The process group of one reducer of DDP: what it is given belongs to the reducer.

    group:    the group of the model
    bytes_of: the bytes of the reducer's parameters, by type: its buckets hold no more
    """

    def __init__(self, group: RingtrainGroup, bytes_of: dict[torch.dtype, int]):
        super().__init__(group.order, group._options)
        self.shared_buckets = group.shared_buckets
        self._bytes_of, self._questions = bytes_of, 0
        self._seen: set[tuple[int, int]] = set()
        self._shadowed: Iterator[np.ndarray] | None = None

    def allreduce(self, tensors: list[torch.Tensor], opts=None) -> CollectiveWork:
        with self.order.lock:
            if self._shadowed is not None:
                return self._shadow(tensors[0], self._shadowed, opts)
            for tensor in tensors:
                if self._is_bucket(tensor) and self.shared_buckets.wants(tensor):
                    self.shared_buckets.share(tensor, self._knows(tensor.untyped_storage()), self)
            return super().allreduce(tensors, opts)

    def _is_bucket(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor may be a bucket that is worth sharing; the same on all ranks."""
        return (
            tensor.layout is torch.strided
            and tensor.device.type == "cpu"
            and SMALLEST_BYTES
            <= tensor.untyped_storage().nbytes()
            == tensor.nbytes
            <= self._bytes_of.get(tensor.dtype, 0)
            and self._questions < MOST_QUESTIONS
        )

    # ── a rank that has no more inputs, while others have (PyTorch's Join) ────────────────────────────────
    def begin_shadowing(self) -> None:
        """From here on zeros come in place of the buckets, in the order in which these were shared."""
        self._shadowed = iter(self.shared_buckets.buckets_of(self))

    def end_shadowing(self) -> None:
        self._shadowed = None

    def _shadow(self, zeros: torch.Tensor, shared: Iterator[np.ndarray], opts) -> CollectiveWork:
        """All-reduce the zeros that stand for a bucket, where this rank's bucket lies if the others' are shared. The
        bucket's gradients are put back."""
        memory = next(shared, None) if self._is_bucket(zeros) else None
        if memory is None:
            if self._is_bucket(zeros) and self.shared_buckets.wants(zeros):
                self.shared_buckets.share(zeros, False, self)
                self._questions += 1
            return super().allreduce([zeros], opts)
        bucket = torch.from_numpy(memory).view(zeros.dtype)
        kept = bucket.clone()
        inner = super().allreduce([bucket.zero_()], opts)

        def finish() -> None:
            zeros.copy_(bucket)
            bucket.copy_(kept)

        return CollectiveWork(self.order, inner.flights, [inner.wait, finish], [zeros])

    # ── what a bucket is ──────────────────────────────────────────────────────────────────────────────────
    def forget(self) -> None:
        """Know no memory any more: the buckets are new, and may lie where others lay."""
        self._seen.clear()

    def _knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether this memory has been here before; from now on it has."""
        memory = storage.data_ptr(), storage.nbytes()
        known = memory in self._seen
        self._seen.add(memory)
        self._questions += 1
        return known


class BucketReducer(dist.Reducer):
    """DDP's reducer with a process group of its own."""

    def __init__(self, parameters, buckets, limits, group, *arguments, **named):
        if isinstance(group, RingtrainGroup) and parameters[0].device.type == "cpu":
            group.shared_buckets.release()
            group = BucketGroup(group, _bytes_by_type(parameters))
        self.group = group  # the C++ part finds Python's methods as long as Python holds the object
        super().__init__(parameters, buckets, limits, group, *arguments, **named)

    # DDP calls these in Python: the first before each forward, and for a rank that has no more inputs, which then calls
    # the last.
    @_disable_dynamo  # torch.compile of a DistributedDataParallel reads what forward calls
    def _rebuild_buckets(self) -> bool:
        rebuilt = super()._rebuild_buckets()
        if isinstance(self.group, BucketGroup):
            self.group.end_shadowing()
            if rebuilt:
                self.group.forget()
        return rebuilt

    def _set_forward_pass_work_handle(self, work: dist.Work, *arguments) -> None:
        self._forward_work = work  # as above for the group
        super()._set_forward_pass_work_handle(work, *arguments)

    def _get_zeros_like_grad_buckets(self) -> list:
        if isinstance(self.group, BucketGroup):
            self.group.begin_shadowing()
        return super()._get_zeros_like_grad_buckets()


_register_torchs_own = dist._register_builtin_comm_hook


def register_builtin_comm_hook(reducer: dist.Reducer, kind: dist.BuiltinCommHookType) -> None:
    """Give the reducer one of PyTorch's hooks in C++; in place of the one for float16, which takes the results of C++
    groups alone, PyTorch's in Python."""
    if kind == dist.BuiltinCommHookType.FP16_COMPRESS and isinstance(getattr(reducer, "group", None), BucketGroup):
        dist._register_comm_hook(reducer, reducer.group, fp16_compress_hook)
    else:
        _register_torchs_own(reducer, kind)


def _bytes_by_type(parameters) -> Counter[torch.dtype]:
    total: Counter[torch.dtype] = Counter()
    for parameter in parameters:
        total[parameter.dtype] += parameter.nbytes
    return total
