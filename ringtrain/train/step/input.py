"""Brings a gathered batch from the host to the device, as the network's input."""

from collections.abc import Callable, Hashable

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.mixing import Mix
from ringtrain.data.file.dataset import DataSet
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Shape
from ringtrain.nn.shapes import element_count
from ringtrain.nn.spec import IMAGE_EXTENTS, InputSpec, Unit
from ringtrain.ops.base import Ops
from ringtrain.train.step.prefetch import Prefetcher, raw_arrays
from ringtrain.train.step.slow_rank import Pause


class DeviceInput:
    """Uploads slices of a batch, and normalises images by the model's input table. If operations are recorded,
    :class:`Prefetcher` uploads the next batch ahead of time. ``pause``: of a slow rank, before each :meth:`load`;
    ``unit``: of labels that are values, and of outputs."""

    def __init__(self, ops: Ops, spec: InputSpec, data: DataSet, pause: Pause | None = None, unit: Unit | None = None):
        self._ops, self._shape, self.pause, self._unit = ops, spec.shape, pause, unit
        self._mean_of = lambda shape: _on_device(ops, mean_of(spec, data, shape))
        self._means: dict[Shape, Array] = {}  # by the shape of the images: transformed ones may have another
        self._scale = _on_device(ops, spec.factors(data.std))
        self._prefetcher = Prefetcher(ops, unit) if ops.records else None

    def load(self, space: Workspace, batch: Batch, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Examples ``start:stop`` of the batch, at the same addresses in every call. Shapes: → x [n, *input shape],
        labels int32 or of the operations' type [n, ...], examples int64 [n]"""
        if self.pause is not None:
            self.pause()
        if self._prefetcher is None:
            hosts = raw_arrays(batch, self._ops.dtype, self._unit)
            raw = {name: self._kept(space, name, host[start:stop], self._ops.upload) for name, host in hosts.items()}
        else:
            self._prefetcher.wait(batch)
            raw = self._prefetcher.arrays(batch, start, stop)
            kept = {"labels", "examples", "partner.labels"} & raw.keys()
            raw |= {name: self._kept(space, name, raw[name], self._ops.copy) for name in kept}
        x = self._prepared(space, raw)
        if batch.mix is not None:
            self._mix(space, x, self._prepared(space, raw, "partner."), batch.mix)
        if self._prefetcher is not None:
            self._prefetcher.release(batch)
        return x, raw["labels"], raw["examples"]

    def restored(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs on the host in the unit of the stored labels."""
        return outputs if self._unit is None else (outputs * self._unit[1] + self._unit[0]).astype(outputs.dtype)

    def hold(self, batch: Batch) -> Hashable:
        """Let further operations wait for the batch to be on the device, until :meth:`release`. Returns a key of the
        memory that it is in."""
        assert self._prefetcher is not None, "a host records nothing"
        self._mean(tuple(batch.images.shape[1:]))  # uploaded before a recording reads it
        return self._prefetcher.wait(batch)

    def take(self, space: Workspace, batch: Batch, start: int, stop: int) -> tuple[Array, Array, Array]:
        """As :meth:`load`, of a batch that is held, without a copy of labels and examples: other batches have others.
        A recording may do it."""
        assert self._prefetcher is not None, "a host records nothing"
        raw = self._prefetcher.arrays(batch, start, stop)
        return self._prepared(space, raw), raw["labels"], raw["examples"]

    def release(self, batch: Batch) -> None:
        """End what :meth:`hold` began: all reads of the batch have been issued."""
        if self._prefetcher is not None:
            self._prefetcher.release(batch)

    def partner_labels(self, space: Workspace, batch: Batch, start: int, stop: int) -> Array | None:
        """The labels of the partners of the examples loaded last; None for a batch that is not mixed."""
        if batch.partner is None:
            return None
        labels = batch.partner.labels[start:stop]
        return space("batch.partner.labels", labels.shape, labels.dtype)

    def _prepared(self, space: Workspace, raw: dict[str, Array], prefix: str = "") -> Array:
        """The network's input of raw arrays, or of the partner's."""
        images = raw[f"{prefix}images"]
        mean = self._mean(tuple(images.shape[1:]))
        x = space(f"{prefix}input", (images.shape[0], *self._shape))
        placed = (raw[f"{prefix}{name}"] for name in ("top", "left", "flip"))
        images, prepared = self._as_images(images), self._as_images(x)
        self._ops.prepare_images(images, prepared, mean.reshape(images.shape[1:]), self._scale, *placed)
        if f"{prefix}erase" in raw:
            self._ops.paste_boxes(x, None, raw[f"{prefix}erase"])
        return x

    def _mean(self, shape: Shape) -> Array:
        if shape not in self._means:
            self._means[shape] = self._mean_of(shape)
        return self._means[shape]

    def _as_images(self, inputs: Array) -> Array:
        """Inputs of any number of extents as images: of one row, unless the network takes images and these are some.
        Shapes: [N, ...] → [N, H, W, C]"""
        count, *shape = inputs.shape
        if len(shape) == len(self._shape) == IMAGE_EXTENTS:
            return inputs
        channels = self._scale.shape[0]
        return inputs.reshape((count, 1, element_count(tuple(shape)) // channels, channels))

    def _mix(self, space: Workspace, x: Array, other: Array, mix: Mix) -> None:
        """Mix each example with its partner, in place."""
        if mix.box is None:
            self._ops.scale(x, mix.share)
            self._ops.scale(other, 1 - mix.share)
            self._ops.add(x, other, x)
        else:
            boxes = np.tile(np.array(mix.box, np.int32), (x.shape[0], 1))
            self._ops.paste_boxes(x, other, self._kept(space, "box", boxes, self._ops.upload))

    def ahead(self, batch: Batch) -> None:
        """Start the upload of the next batch."""
        if self._prefetcher is not None:
            self._prefetcher.bring(batch)

    def arrive(self, batch: Batch) -> None:
        """Return when the host's memory of a batch may be used again."""
        if self._prefetcher is not None:
            self._prefetcher.arrive(batch)

    def _kept(self, space: Workspace, name: str, source: Array, move: Callable[..., None]) -> Array:
        """A copy at the address that recorded passes read."""
        array = space(f"batch.{name}", source.shape, source.dtype)
        move(source, array)
        return array


def mean_of(spec: InputSpec, data: DataSet, shape: Shape) -> np.ndarray:
    """The mean to subtract from inputs of this shape. Shapes: → one input"""
    if spec.mean == "image":
        return data.mean_image
    if spec.mean == "channel":
        return np.broadcast_to(data.mean, shape)
    return np.zeros(shape)


def _on_device(ops: Ops, host: np.ndarray) -> Array:
    return ops.from_host(np.ascontiguousarray(host, ops.dtype))
