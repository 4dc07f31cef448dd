"""Raw batches on a device: the next one is uploaded beside the computing of this one.

::
    computing   load k ── forward, backward, update k ───────────► load k+1 ──
    beside            ╲── upload k+1 ─────────────────────────────╱
                   place 0                                      place 1

Two places take turns. An upload into one waits until the load before last has read it; a load waits for its upload.
"""

from dataclasses import dataclass, field

from ringtrain.data.batches.batches import Batch
from ringtrain.nn.base import Workspace
from ringtrain.ops.base import Ops
from ringtrain.ops.machine import Mark

RAW = ("images", "labels", "examples", "top", "left", "flip")


@dataclass(slots=True)
class PrefetchSlot:
    """batch: whose arrays are here, or on their way; there: when they are; read: when they have been read"""

    space: Workspace
    batch: Batch | None = None
    arrays: dict = field(default_factory=dict)
    there: Mark | None = None
    read: Mark | None = None


class Prefetcher:
    """Of operations ``ops``, which load from it."""

    def __init__(self, ops: Ops):
        self._ops, self._beside = ops, ops.beside()
        self._places = [PrefetchSlot(Workspace(ops)), PrefetchSlot(Workspace(ops))]  # the first is filled next

    def bring(self, batch: Batch) -> None:
        """Begin to upload a batch, unless that was begun."""
        if any(place.batch is batch for place in self._places):
            return
        place = self._places.pop(0)
        self._places.append(place)
        if place.read is not None:
            self._beside.after(place.read)
        held, hosts = place.space.nbytes, {name: getattr(batch, name) for name in RAW}
        place.arrays = {name: place.space(name, host.shape, host.dtype) for name, host in hosts.items()}
        if place.space.nbytes != held:
            self._ops.synchronize()  # new memory may be what an array of theirs was, with work on it still to be done
        for name, host in hosts.items():
            self._beside.upload(host, place.arrays[name])
        place.batch, place.there = batch, self._beside.mark()

    def arrays(self, batch: Batch, start: int, stop: int) -> dict:
        """Examples ``start:stop`` of a batch, by the names of RAW. :meth:`release` when they have been read."""
        self.bring(batch)
        place = self._of(batch)
        self._ops.after(place.there)
        return {name: array[start:stop] for name, array in place.arrays.items()}

    def release(self, batch: Batch) -> None:
        """Mark the end of the reads of this batch that were issued by now."""
        self._of(batch).read = self._ops.mark()

    def arrive(self, batch: Batch) -> None:
        """Return when it has left the host's memory, if it is on its way."""
        for place in self._places:
            if place.batch is batch:
                place.there.wait()

    def _of(self, batch: Batch) -> PrefetchSlot:
        return next(place for place in self._places if place.batch is batch)
