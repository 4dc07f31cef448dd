"""DDP's reducer with a process group of its own, which knows what belongs to the reducer."""

import torch
import torch.distributed as dist

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
        super().__init__(group.communicator)
        self.lock, self.shared_buckets = group.lock, group.shared_buckets
        self._bytes_of, self._questions = bytes_of, 0
        self._seen: set[tuple[int, int]] = set()

    def allreduce(self, tensors: list[torch.Tensor], opts=None) -> CollectiveWork:
        with self.lock:
            for tensor in tensors:
                if self._is_bucket(tensor) and self.shared_buckets.wants(tensor):
                    self.shared_buckets.share(tensor, self._knows(tensor.untyped_storage()), self)
            return super().allreduce(tensors, opts)

    def _is_bucket(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor may be a bucket that is worth sharing; the same on all ranks."""
        nbytes = tensor.untyped_storage().nbytes()
        return (
            SMALLEST_BYTES <= nbytes == tensor.nbytes <= self._bytes_of.get(tensor.dtype, 0)
            and tensor.device.type == "cpu"
            and self._questions < MOST_QUESTIONS
        )

    def _knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether this memory has been here before; from now on it has."""
        place = storage.data_ptr(), storage.nbytes()
        known = place in self._seen
        self._seen.add(place)
        self._questions += 1
        return known


class BucketReducer(dist.Reducer):
    """DDP's reducer with a process group of its own."""

    def __init__(self, parameters, buckets, limits, group, *arguments, **named):
        if isinstance(group, RingtrainGroup):
            group.shared_buckets.release()
            group = BucketGroup(group, _bytes_by_type(parameters))
        self.group = group  # the C++ part finds Python's methods as long as Python holds the object
        super().__init__(parameters, buckets, limits, group, *arguments, **named)


def _bytes_by_type(parameters) -> dict[torch.dtype, int]:
    total: dict[torch.dtype, int] = {}
    for parameter in parameters:
        total[parameter.dtype] = total.get(parameter.dtype, 0) + parameter.nbytes
    return total
