"""Brings a gathered batch from the host to the device, as the network's input."""

from collections.abc import Callable

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.data.file.dataset import DataSet
from ringtrain.nn.spec import InputSpec
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.train.step.prefetch import RAW, Prefetcher


class DeviceInput:
    """Uploads slices of a batch, and normalises images by the model's input table. If operations are recorded,
    :class:`Prefetcher` uploads the next batch ahead of time."""

    def __init__(self, ops: Ops, spec: InputSpec, data: DataSet):
        self._ops, self._shape = ops, spec.shape
        self._mean = _on_device(ops, mean_of(spec, data))
        self._scale = _on_device(ops, scale_of(spec, data))
        self._prefetcher = Prefetcher(ops) if ops.records else None

    def load(self, space: Workspace, batch: Batch, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Examples ``start:stop`` of the batch, at the same addresses in every call. Shapes: → x [n, H, W, C],
        labels int32 [n], examples int64 [n]"""
        if self._prefetcher is None:
            raw = {name: getattr(batch, name)[start:stop] for name in RAW}
            raw = {name: self._kept(space, name, host, self._ops.upload) for name, host in raw.items()}
        else:
            raw = self._prefetcher.arrays(batch, start, stop)
            raw |= {name: self._kept(space, name, raw[name], self._ops.copy) for name in ("labels", "examples")}
        x = space("input", (stop - start, *self._shape))
        placed = raw["top"], raw["left"], raw["flip"]
        self._ops.prepare_images(raw["images"], x, self._mean, self._scale, *placed)
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


def mean_of(spec: InputSpec, data: DataSet) -> np.ndarray:
    """The mean to subtract. Shapes: → [H, W, C] of the data set's images"""
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
