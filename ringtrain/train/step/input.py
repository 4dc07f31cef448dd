"""Brings a gathered batch from the host to the device, as the network's input."""

from collections.abc import Callable

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.data.file.dataset import DataSet
from ringtrain.nn.shapes import element_count
from ringtrain.nn.spec import IMAGE_EXTENTS, InputSpec
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.train.step.prefetch import Prefetcher, raw_arrays


class DeviceInput:
    """Uploads slices of a batch, and normalises images by the model's input table. If operations are recorded,
    :class:`Prefetcher` uploads the next batch ahead of time."""

    def __init__(self, ops: Ops, spec: InputSpec, data: DataSet):
        self._ops, self._shape, self._whole = ops, spec.shape, len(spec.shape) != IMAGE_EXTENTS
        self._scale = _on_device(ops, scale_of(spec, data))
        self._mean = as_images(_on_device(ops, mean_of(spec, data)[None]), self._scale.shape[0], self._whole)[0]
        self._prefetcher = Prefetcher(ops) if ops.records else None

    def load(self, space: Workspace, batch: Batch, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Examples ``start:stop`` of the batch, at the same addresses in every call. Shapes: → x [n, *input shape],
        labels int32 or of the operations' type [n, ...], examples int64 [n]"""
        if self._prefetcher is None:
            raw = {name: array[start:stop] for name, array in raw_arrays(batch, self._ops.dtype).items()}
            raw = {name: self._kept(space, name, host, self._ops.upload) for name, host in raw.items()}
        else:
            raw = self._prefetcher.arrays(batch, start, stop)
            raw |= {name: self._kept(space, name, raw[name], self._ops.copy) for name in ("labels", "examples")}
        x = space("input", (stop - start, *self._shape))
        placed = raw["top"], raw["left"], raw["flip"]
        channels = self._scale.shape[0]
        images, prepared = (as_images(each, channels, self._whole) for each in (raw["images"], x))
        self._ops.prepare_images(images, prepared, self._mean, self._scale, *placed)
        if self._prefetcher is not None:
            self._prefetcher.release(batch)
        return x, raw["labels"], raw["examples"]

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


def as_images(inputs: Array, channels: int, whole: bool) -> Array:
    """Inputs of any number of extents as images, of one row unless they are images. ``whole``: of one row at any rate,
    for a network that takes no images. Shapes: [N, ...] → [N, H, W, C]"""
    count, *shape = inputs.shape
    if len(shape) == IMAGE_EXTENTS and not whole:
        return inputs
    return inputs.reshape((count, 1, element_count(tuple(shape)) // channels, channels))


def mean_of(spec: InputSpec, data: DataSet) -> np.ndarray:
    """The mean to subtract. Shapes: → those of one stored input"""
    shape = data.train.shape
    if spec.mean == "image":
        return data.mean_image
    if spec.mean == "channel":
        return np.broadcast_to(data.mean, shape)
    return np.zeros(shape)


def scale_of(spec: InputSpec, data: DataSet) -> np.ndarray:
    """The factor of each channel; that of a constant channel ignores its deviation. Shapes: → [C]"""
    std = data.std if spec.std == "channel" else np.ones(len(data.std))
    return spec.scale / np.where(std > 0, std, 1.0)


def _on_device(ops: Ops, host: np.ndarray) -> Array:
    return ops.from_host(np.ascontiguousarray(host, ops.dtype))
