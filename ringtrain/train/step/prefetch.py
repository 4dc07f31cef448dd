"""Uploads the next raw batch to a device while this one is computed.

::
    computing   load k ── forward, backward, update k ───────────► load k+1 ──
    beside            ╲── upload k+1 ─────────────────────────────╱
                    slot 0                                       slot 1

Two slots take turns. An upload waits until the last load from its slot has read it; a load waits for its upload.
"""

from dataclasses import dataclass, field

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.ops.machine import Mark

RAW = ("images", "labels", "examples", "top", "left", "flip")


def raw_arrays(batch: Batch, dtype: np.dtype) -> dict[str, np.ndarray]:
    """The host arrays of a batch that a device needs, by name: those of RAW; "erase" where there are such boxes; and
    those of its partner, behind "partner.". Labels that are values are of type ``dtype``."""
    names = (*RAW, "erase") if batch.erase.any() else RAW
    arrays = {name: getattr(batch, name) for name in names}
    if batch.labels.dtype.kind == "f":
        arrays["labels"] = batch.labels.astype(dtype, copy=False)
    if batch.partner is not None:
        arrays |= {f"partner.{name}": array for name, array in raw_arrays(batch.partner, dtype).items()}
    return arrays


@dataclass(slots=True)
class PrefetchSlot:
    """batch: the batch whose arrays the slot holds; uploaded: the end of their upload; read: the end of their reads"""

    space: Workspace
    batch: Batch | None = None
    arrays: dict[str, Array] = field(default_factory=dict)
    uploaded: Mark = field(init=False)
    read: Mark | None = None


class Prefetcher:
    """Uploads batches for operations ``ops``, beside these."""

    def __init__(self, ops: Ops):
        self._ops, self._beside = ops, ops.beside()
        self._slots = [PrefetchSlot(Workspace(ops)), PrefetchSlot(Workspace(ops))]  # the first is filled next

    def bring(self, batch: Batch) -> None:
        """Start the upload of a batch, unless it has started."""
        if any(slot.batch is batch for slot in self._slots):
            return
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.read is not None:
            self._beside.after(slot.read)
        held, hosts = slot.space.nbytes, raw_arrays(batch, self._ops.dtype)
        slot.arrays = {name: slot.space(name, host.shape, host.dtype) for name, host in hosts.items()}
        if slot.space.nbytes != held:
            self._ops.synchronize()  # new memory may be that of a freed array with work on it still to be done
        for name, host in hosts.items():
            self._beside.upload(host, slot.arrays[name])
        slot.batch, slot.uploaded = batch, self._beside.mark()

    def arrays(self, batch: Batch, start: int, stop: int) -> dict[str, Array]:
        """Examples ``start:stop`` of a batch, named as by :func:`raw_arrays`. Call :meth:`release` after the reads."""
        self.bring(batch)
        slot = self._of(batch)
        self._ops.after(slot.uploaded)
        return {name: array[start:stop] for name, array in slot.arrays.items()}

    def release(self, batch: Batch) -> None:
        """Mark the end of the reads of this batch that were issued by now."""
        self._of(batch).read = self._ops.mark()

    def arrive(self, batch: Batch) -> None:
        """Wait for the upload of a batch, if there is one."""
        for slot in self._slots:
            if slot.batch is batch:
                slot.uploaded.wait()

    def _of(self, batch: Batch) -> PrefetchSlot:
        return next(slot for slot in self._slots if slot.batch is batch)
