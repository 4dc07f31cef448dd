"""From a gathered batch on the host to the network's input on the device."""

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.data.file.dataset import DataSet
from ringtrain.nn.base import Workspace
from ringtrain.nn.spec import InputSpec
from ringtrain.ops.base import Ops
from ringtrain.train.step.prefetch import RAW, Prefetcher


class DeviceInput:
    """Uploads slices of a batch, and normalises images as the model's input table asks for.

    ``mean`` is what is subtracted, spread over every pixel of the data set's images; ``scale`` multiplies a channel.
    Where operations are recorded, batches come by way of :class:`Prefetcher`, the next one ahead of time.
    """

    def __init__(self, ops: Ops, spec: InputSpec, data: DataSet):
        self._ops, self._shape = ops, spec.shape
        self._mean = _on_device(ops, mean_of(spec, data))
        self._scale = _on_device(ops, scale_of(spec, data))
        self._staging = Prefetcher(ops) if ops.records else None

    def load(self, space: Workspace, batch: Batch, start: int, stop: int):
        """Examples ``start:stop`` of the batch, in arrays that lie where they lay before. Shapes: → x [n, H, W, C],
        labels int32 [n], examples int64 [n]"""
        if self._staging is None:
            raw = {name: self._uploaded(space, name, getattr(batch, name)[start:stop]) for name in RAW}
        else:
            raw = self._staging.arrays(batch, start, stop)
            raw |= {name: self._kept(space, name, raw[name]) for name in ("labels", "examples")}
        x = space("input", (stop - start, *self._shape))
        placed = raw["top"], raw["left"], raw["flip"]
        self._ops.prepare_images(raw["images"], x, self._mean, self._scale, *placed)
        if self._staging is not None:
            self._staging.release(batch)
        return x, raw["labels"], raw["examples"]

    def ahead(self, batch: Batch) -> None:
        """This batch will be loaded next."""
        if self._staging is not None:
            self._staging.bring(batch)

    def arrive(self, batch: Batch) -> None:
        """Return when the host's memory of a batch may be used again."""
        if self._staging is not None:
            self._staging.arrive(batch)

    def _uploaded(self, space: Workspace, name: str, host: np.ndarray):
        array = space(f"batch.{name}", host.shape, host.dtype)
        self._ops.upload(host, array)
        return array

    def _kept(self, space: Workspace, name: str, staged):
        """Where recorded passes read it."""
        array = space(f"batch.{name}", staged.shape, staged.dtype)
        self._ops.copy(staged, array)
        return array


def mean_of(spec: InputSpec, data: DataSet) -> np.ndarray:
    """Shapes: → [H, W, C] of the data set's images"""
    shape = data.train.shape
    if spec.mean == "image":
        return data.mean_image
    if spec.mean == "channel":
        return np.broadcast_to(data.mean, shape)
    return np.zeros(shape)


def scale_of(spec: InputSpec, data: DataSet) -> np.ndarray:
    """Shapes: → [C]. A channel that never varies is left as it is."""
    std = data.std if spec.std == "channel" else np.ones(len(data.std))
    return spec.scale / np.where(std > 0, std, 1.0)


def _on_device(ops: Ops, host: np.ndarray):
    return ops.from_host(np.ascontiguousarray(host, ops.dtype))
