"""The facts of the training data by which inputs are prepared and classes named: kept in each checkpoint, so that it
alone predicts."""

from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches.pictures import PictureSplit, View
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.split import Shape, Split
from ringtrain.errors import CheckpointError, everywhere
from ringtrain.nn.spec import InputSpec, centred
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.train.assembly.data import takes
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Facts of the training data."""

    classes: tuple[str, ...]  # their names; none where labels are values
    shape: Shape  # of one stored example
    mean: np.ndarray  # float64 [C], on the scale of the stored values
    std: np.ndarray  # float64 [C], on the scale of the stored values
    mean_image: np.ndarray | None  # float32 of ``shape``; None where the network does not subtract it
    crop: Shape  # the input of the network, which is the centre of an example
    view: View | None  # of images of any size, by which they have ``shape``; None where all have it as they are
    label_moments: np.ndarray | None = None  # mean and std of labels that are values, float64 [2, K]

    def data_set(self, name: str, split: Split) -> DataSet:
        """Return a split as a data set with these facts."""
        if self.mean_image is None:
            mean_image = np.broadcast_to(self.mean, split.shape)
        else:
            mean_image = centred(self.mean_image, split.shape, self.crop)
        about = self.classes, self.mean, self.std, mean_image, ""
        return DataSet(name, split, None, *about, label_moments=self.label_moments)


def inputs_of(spec: InputSpec, data: DataSet) -> dict[str, np.ndarray]:
    kept = {"mean": data.mean, "std": data.std, "shape": np.array(data.train.shape, np.int64)}
    if spec.mean == "image":
        kept["mean_image"] = data.mean_image
    if data.label_moments is not None:
        kept["label_moments"] = data.label_moments
    view = data.train.view if isinstance(data.train, PictureSplit) else None
    if view is not None:
        kept["view"] = np.array([] if view.to is None else view.to, np.int64).reshape(-1)
    return kept


def facts_of(spec: InputSpec, data: DataSet) -> InputFacts:
    return _checked_facts(spec, data.classes, inputs_of(spec, data))


def form_of(checkpoint: Checkpoint) -> dict:
    """The names of the classes, and shape and type of each array of a checkpoint's facts: JSON-able."""
    arrays = {name: [list(array.shape), array.dtype.str] for name, array in checkpoint.inputs.items()}
    return {"classes": checkpoint.classes, "inputs": arrays}


def spread(transport: Transport, form: dict, checkpoint: Checkpoint | None, spec: InputSpec) -> InputFacts | None:
    """Broadcast the facts in rank 0's checkpoint; all ranks know their :func:`form_of`. None if an earlier
    version wrote it, which has none. Collective; raises CheckpointError for facts that do not fit the network's input.
    """
    if not form["inputs"]:
        return None
    arrays = {}
    for name, (shape, dtype) in form["inputs"].items():
        array = np.empty(shape, dtype) if checkpoint is None else np.ascontiguousarray(checkpoint.inputs[name])
        transport.broadcast(array)
        arrays[name] = array
    try:
        return _checked_facts(spec, tuple(form["classes"]), arrays)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise everywhere(
            CheckpointError(
                f"checkpoint {form['path']}: the mean, std, mean_image or shape of its training data do not fit the "
                f"input of model {form['model_name']!r}: it was changed; use another one"
            )
        ) from None


def _checked_facts(spec: InputSpec, classes: tuple[str, ...], arrays: dict[str, np.ndarray]) -> InputFacts:
    """Raises KeyError for an array that is missing, ValueError for one of another shape."""
    shape = tuple(int(extent) for extent in arrays["shape"])
    mean_image = arrays["mean_image"] if spec.mean == "image" else None
    if min(shape, default=0) < 1 or not takes(spec, shape):
        raise ValueError(shape)
    np.broadcast_to(arrays["mean"], shape), np.broadcast_to(arrays["std"], shape)
    if mean_image is not None and mean_image.shape != shape:
        raise ValueError(mean_image.shape)
    view = _view(arrays["view"].tolist(), spec) if "view" in arrays else None
    if view is not None and view.size != shape[:2]:
        raise ValueError(view)
    moments = arrays.get("label_moments")
    if moments is not None and (moments.ndim != 2 or len(moments) != 2):
        raise ValueError(moments.shape)
    return InputFacts(classes, shape, arrays["mean"], arrays["std"], mean_image, tuple(spec.shape), view, moments)


def _view(to: list[int], spec: InputSpec) -> View:
    height, width, _ = spec.shape
    return View((height, width), (to[0], to[1]) if len(to) > 1 else to[0] if to else None)
