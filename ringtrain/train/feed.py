"""From a gathered batch on the host to the network's input on the device."""

import numpy as np

from ringtrain.data.batches import Batch
from ringtrain.data.dataset import DataSet
from ringtrain.nn.base import Workspace
from ringtrain.nn.spec import InputSpec
from ringtrain.ops.base import Ops


class Feed:
    """Uploads slices of a batch, and normalises images as the model's input table asks for.

    ``mean`` is what is subtracted, spread over every pixel of the data set's images; ``scale`` multiplies a channel.
    """

    def __init__(self, ops: Ops, spec: InputSpec, data: DataSet):
        self._ops, self._shape = ops, spec.shape
        self._mean = _on_device(ops, mean_of(spec, data))
        self._scale = _on_device(ops, scale_of(spec, data))

    def load(self, space: Workspace, batch: Batch, start: int, stop: int):
        """Examples ``start:stop`` of the batch. Shapes: → x [n, H, W, C], labels int32 [n], examples int64 [n]"""
        raw, labels, examples, top, left, flip = (
            self._upload(space, name, getattr(batch, name)[start:stop])
            for name in ("images", "labels", "examples", "top", "left", "flip")
        )
        x = space("input", (stop - start, *self._shape))
        self._ops.prepare_images(raw, x, self._mean, self._scale, top, left, flip)
        return x, labels, examples

    def _upload(self, space: Workspace, name: str, host: np.ndarray):
        array = space(f"batch.{name}", host.shape, host.dtype)
        self._ops.upload(host, array)
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
