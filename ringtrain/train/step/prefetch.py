"""Uploads the next raw batch to a device while this one is computed.

::
    computing   load k ── forward, backward, update k ───────────► load k+1 ──
    beside            ╲── upload k+1 ─────────────────────────────╱
                    slot 0                                       slot 1

Two slots take turns. An upload waits until the last load from its slot has read it; a load waits for its upload.
Images, and other large arrays such as dense labels, travel by themselves; the rest is packed and travels as one.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.spec import Unit
from ringtrain.ops.base import Mark, Ops

RAW = ("images", "labels", "examples", "top", "left", "flip")
PACKED_BYTES = 1 << 16  # of an array that is packed
ALIGNMENT = 16


def raw_arrays(batch: Batch, dtype: np.dtype, unit: Unit | None = None) -> dict[str, np.ndarray]:
    """The host arrays of a batch that a device needs, by name: the arrays of RAW; "erase" if the batch has
    boxes to erase; and the arrays of its mixup partner, prefixed "partner.". Labels that are values are of type
    ``dtype``, and (label - mean) / std of their ``unit``."""
    names = (*RAW, "erase") if batch.erase.any() else RAW
    arrays = {name: getattr(batch, name) for name in names}
    if batch.labels.dtype.kind == "f":
        labels = batch.labels if unit is None else (batch.labels - unit[0]) / unit[1]
        arrays["labels"] = labels.astype(dtype, copy=False)
    if batch.partner is not None:
        arrays |= {f"partner.{name}": array for name, array in raw_arrays(batch.partner, dtype).items()}
    return arrays


class Pack:
    """Small arrays one behind the other in pinned memory, and their copies on the device."""

    def __init__(self, ops: Ops, hosts: Mapping[str, np.ndarray]):
        spans, end = dict[str, tuple[int, int]](), 0
        for name, host in hosts.items():
            spans[name] = end, end + host.nbytes
            end += -(-host.nbytes // ALIGNMENT) * ALIGNMENT
        self._host, self._device = ops.pinned((end,), np.uint8), ops.empty((end,), np.uint8)
        self.arrays, self._views = dict[str, Array](), dict[str, np.ndarray]()
        for name, (start, stop) in spans.items():
            shape, dtype = hosts[name].shape, hosts[name].dtype
            self.arrays[name] = ops.typed(self._device[start:stop], dtype).reshape(shape)
            self._views[name] = self._host[start:stop].view(dtype).reshape(shape)

    def upload(self, hosts: Mapping[str, np.ndarray], ops: Ops) -> None:
        """Upload arrays of this layout in the stream of ``ops``; the previous upload must have ended."""
        for name, view in self._views.items():
            view[...] = hosts[name]
        ops.upload(self._host, self._device)


@dataclass(slots=True)
class PrefetchSlot:
    """batch: the batch whose arrays the slot holds; layout: of these arrays; uploaded: the end of their upload; read:
    the end of their reads"""

    number: int
    space: Workspace
    packs: dict[Hashable, Pack] = field(default_factory=dict)
    batch: Batch | None = None
    layout: Hashable = None
    arrays: dict[str, Array] = field(default_factory=dict)
    uploaded: Mark = field(init=False)
    read: Mark | None = None


class Prefetcher:
    """Uploads batches on a stream beside the stream of ``ops``."""

    def __init__(self, ops: Ops, unit: Unit | None = None):
        self._ops, self._beside, self._unit = ops, ops.beside(), unit
        self._slots = [PrefetchSlot(number, Workspace(ops)) for number in range(2)]  # the first is filled next

    def bring(self, batch: Batch) -> None:
        """Start the upload of a batch, unless it has started."""
        if any(slot.batch is batch for slot in self._slots):
            return
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.batch is not None:
            slot.uploaded.wait()  # its packed arrays are free
        if slot.read is not None:
            self._beside.after(slot.read)
        self._upload(slot, raw_arrays(batch, self._ops.dtype, self._unit))
        slot.batch, slot.uploaded = batch, self._beside.mark()

    def _upload(self, slot: PrefetchSlot, hosts: Mapping[str, np.ndarray]) -> None:
        small = {name: host for name, host in hosts.items() if "images" not in name and host.nbytes <= PACKED_BYTES}
        large = {name: host for name, host in hosts.items() if name not in small}
        nbytes, layout = slot.space.nbytes, tuple((name, host.shape) for name, host in hosts.items())
        arrays = {name: slot.space(name, host.shape, host.dtype) for name, host in large.items()}
        pack = slot.packs.get(layout)
        if pack is None:
            pack = slot.packs[layout] = Pack(self._ops, small)
            nbytes = -1
        if slot.space.nbytes != nbytes:
            self._ops.synchronize()  # new memory may have belonged to a freed array with work on it still to be done
        for name, host in large.items():
            self._beside.upload(host, arrays[name])
        pack.upload(small, self._beside)
        slot.arrays, slot.layout = arrays | pack.arrays, (slot.number, layout, slot.space.replaced)

    def wait(self, batch: Batch) -> Hashable:
        """Let further operations wait for the upload of a batch. Returns a key of the memory that it is in."""
        self.bring(batch)
        slot = self._slot(batch)
        self._ops.after(slot.uploaded)
        return slot.layout

    def arrays(self, batch: Batch, start: int, stop: int) -> dict[str, Array]:
        """Examples ``start:stop`` of a batch that was waited for, named as by :func:`raw_arrays`. Call :meth:`release`
        after the reads."""
        return {name: array[start:stop] for name, array in self._slot(batch).arrays.items()}

    def release(self, batch: Batch) -> None:
        """Mark the end of the reads of this batch that were issued by now."""
        self._slot(batch).read = self._ops.mark()

    def arrive(self, batch: Batch) -> None:
        """Wait for the upload of a batch, if there is one."""
        for slot in self._slots:
            if slot.batch is batch:
                slot.uploaded.wait()

    def _slot(self, batch: Batch) -> PrefetchSlot:
        return next(slot for slot in self._slots if slot.batch is batch)
