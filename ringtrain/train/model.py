"""A trained model in a program of one's own, without an MPI: ``ringtrain.load``."""

import numpy as np

from ringtrain.data.file.grammar import CHANNELS_FIRST
from ringtrain.data.inputs import is_one, unlabelled
from ringtrain.train.assembly.data import check_images
from ringtrain.train.load import TrainedModel, load_model
from ringtrain.train.predict import blocks, shape_of
from ringtrain.transport.base import Transport
from ringtrain.transport.loopback import Loopback


class Model:
    """A trained model of a run. One call at a time.

    classes: their names; none where the network predicts values
    model:   the model file's contents (:class:`ringtrain.nn.spec.ModelSpec`)
    path:    of the checkpoint
    """

    def __init__(self, transport: Transport, trained: TrainedModel):
        self._transport, self._trained = transport, trained
        self.classes, self.model, self.path = trained.facts.classes, trained.model, trained.path

    def predict(self, array) -> np.ndarray:
        """Return the probabilities of the classes, or the values, as ``ringtrain predict`` gives them.

        array: uint8 or other numbers on the scale of the training data, [N, H, W, C], or one example [H, W, C];
        examples larger than the network's input are cropped at the centre

        Raises: DataError for an array of another shape. Shapes: → [N, K], or [K] for one example
        """
        return self._outputs(array, None)

    def features(self, array, layer: str) -> np.ndarray:
        """Return the output of a layer. Raises: ModelError for an unknown layer; else as :meth:`predict`"""
        return self._outputs(array, layer)

    def _outputs(self, array, layer: str | None) -> np.ndarray:
        array = np.asarray(array)
        shape = shape_of(self._trained, layer)
        channels_first = self._trained.config.data.layout == CHANNELS_FIRST
        split = unlabelled(array, self._trained.facts.shape, "the array", channels_first)
        check_images(self.model, "the array", split.shape)
        outputs = np.empty((split.count, *shape), self._trained.ops.dtype)
        for start, rows in blocks(self._transport, self._trained, split, self._trained.feed_of(split), layer):
            outputs[start : start + len(rows)] = rows
        return outputs[0] if is_one(array, self._trained.facts.shape) else outputs


def load(run, device: str = "cpu", best: bool = False, threads: int | None = None, raw: bool = False) -> Model:
    """Load a trained model in this process alone.

    run:     a checkpoint's file, or the folder of a run: its newest checkpoint is taken (``best``: its best)
    device:  cpu or cuda; ``threads``: of its operations, 1 unless given
    raw:     the weights of the last update, also of a run with ``--ema``

    Raises: CheckpointError, ConfigError, DeviceError
    """
    options = {"device": device} | ({"threads": threads} if threads is not None else {})
    transport = Loopback()
    return Model(transport, load_model(transport, str(run), best, options, raw))
