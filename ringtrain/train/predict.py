"""Writes the prediction for every example, or the output of a layer, block by block into a file."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ringtrain.data import inputs, predictions
from ringtrain.data.batches.batches import Batch, evaluation_batches
from ringtrain.data.content import IGNORE
from ringtrain.data.file.grammar import CHANNELS_FIRST
from ringtrain.data.images import pillow
from ringtrain.data.predictions import FEATURES, PROBABILITY, VALUES, PredictionFile, PredictionForm, PredictionRows
from ringtrain.data.split import Split
from ringtrain.errors import DataError, everywhere
from ringtrain.nn.base import Pass
from ringtrain.nn.graph_checks import unknown_layer
from ringtrain.nn.losses import check_output
from ringtrain.nn.shapes import format_shape
from ringtrain.train.assembly.data import check_images, read_data
from ringtrain.train.assembly.images import threads_of
from ringtrain.train.evaluate import EVALUATION_BATCH, crop_of
from ringtrain.train.load import TrainedModel, TrainedOnData, split_of
from ringtrain.train.step.input import DeviceInput
from ringtrain.transport.agree import agree, keep_on_root, on_root, together
from ringtrain.transport.base import Transport

GRAIN_BYTES = 32 << 20  # of the outputs of a rank at a time


@dataclass(frozen=True, slots=True)
class Predicted:
    """The count of examples. ``accuracy``: on those with a label; None for features or without labels. ``bad``: the
    number of those that could not be read, and ``first``: why the first of them could not."""

    examples: int
    accuracy: float | None
    bad: int = 0
    first: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Examples of one kind and shape."""

    split: Split
    feed: DeviceInput
    # name(example) → the input, and the example's number in it, None for the only one
    name: Callable[[int], tuple[str, int | None]]
    notes: Sequence[str] = ()  # on what its files have and it leaves out


# ── what there is to predict on ───────────────────────────────────────────────────────────────────────────────
def of_data(trained: TrainedOnData) -> list[Source]:
    """The examples of the opened data set."""
    name = "synthetic" if trained.config.data.synthetic else trained.config.data.data or "digits"
    return [Source(trained.split, trained.feed, lambda example: (name, example), notes=trained.data.notes)]


def of_inputs(transport: Transport, trained: TrainedModel, names: Sequence[str], part: str | None) -> list[Source]:
    """The examples of image files, folders of them, arrays and data sets, in their order. ``part``: of a data set; test
    if it has one, unless given. Collective; raises DataError."""
    listed, notes = on_root(transport, lambda: inputs.list_inputs(names))
    sources = [_source(transport, trained, kind, paths, part) for kind, paths in listed]
    return [replace(sources[0], notes=(*notes, *sources[0].notes)), *sources[1:]]


def _source(transport: Transport, trained: TrainedModel, kind: str, paths: list[str], part: str | None) -> Source:
    if kind == inputs.IMAGES:
        images = together(transport, lambda: _images(transport, trained, paths))
        return Source(images, trained.feed_of(images), lambda example: (paths[example], None))
    path = paths[0]
    if kind == inputs.ARRAY:
        first = trained.config.data.layout == CHANNELS_FIRST
        array = together(transport, lambda: inputs.read_array(path, trained.facts.shape, first))
        together(transport, lambda: check_images(trained.model, path, array.shape))
        agree(transport, {f"shape of {path}": [array.count, *array.shape]})
        return Source(array, trained.feed_of(array), lambda example: (path, example))
    data = read_data(trained.config.changed(data=path, test_data=None, synthetic=False), trained.model, transport)
    chosen = part or ("train" if data.test is None else "test")
    split = together(transport, lambda: split_of(data, chosen, trained.model))
    return Source(split, trained.feed_of(split), lambda example: (path, example), notes=data.notes)


def _images(transport: Transport, trained: TrainedModel, paths: list[str]) -> inputs.ImageFiles:
    shape = trained.facts.shape
    if len(shape) != 3 or shape[-1] not in (1, 3):
        wanted = format_shape(trained.model.input.shape)
        raise DataError(
            f"model {trained.model.name!r} takes {wanted}, which no image file gives: give arrays (.npy, .npz)"
        )
    pillow()  # an error of the installation, and not of each file
    return inputs.ImageFiles(paths, shape, trained.facts.view, threads_of(trained.config.device, transport))


# ── predictions ───────────────────────────────────────────────────────────────────────────────────────────────
def write_predictions(
    transport: Transport,
    trained: TrainedModel,
    sources: Sequence[Source],
    out: Path,
    layer: str | None = None,
    force: bool = False,
    top: int | None = None,
    named: bool = False,
) -> Predicted:
    """Write the prediction for each example of the sources, in order. Rank 0 writes; collective.

    ``layer``: whose output to write instead; ``top``: classes of a JSON line; ``named``: whether inputs were given,
    which rows name
    """
    agree(transport, {"out": str(out), "features": layer, "force": force, "top": top})
    data = trained.data if isinstance(trained, TrainedOnData) else None
    if data is not None and layer is None:
        together(transport, lambda: check_output(trained.loss, trained.graph, data))
    kind = FEATURES if layer is not None else PROBABILITY if trained.loss.probabilities else VALUES
    count, shape = sum(source.split.count for source in sources), tuple(shape_of(trained, layer))
    targets = kind == VALUES and any(source.split.label_dtype.kind == "f" for source in sources)
    form = PredictionForm(kind, count, shape, trained.facts.classes, named, targets)

    def make() -> tuple[PredictionFile, None]:
        about = {
            "model": trained.model.name,
            "checkpoint": trained.path,
            "data": data.name if data is not None else "",
            "layer": layer or "",
        }
        return predictions.open_predictions(out, form, about, force, top, sys.stdout), None

    def finish() -> float | None:
        file.finish()
        return file.accuracy

    file, _ = keep_on_root(transport, make)
    bad: list[str] = []
    try:
        for rows in _rows(transport, trained, sources, layer, targets):
            bad += rows.problems.values()
            on_root(transport, partial(PredictionFile.write, file, rows))
        accuracy = on_root(transport, finish)
    finally:
        if file is not None:
            file.discard()
    return Predicted(form.count, accuracy, len(bad), bad[0] if bad else "")


def _targets(split: Split, start: int, shape: tuple[int, ...]) -> np.ndarray:
    """The true values of some examples; NaN where labels are no values of this shape."""
    if split.label_dtype.kind != "f" or math.prod(split.label_shape) != math.prod(shape[1:]):
        return np.full(shape, np.nan)
    return split.values(start, start + shape[0]).reshape(shape)


def shape_of(trained: TrainedModel, layer: str | None) -> tuple[int, ...]:
    """The shape of one example's prediction, or of a layer's output. Raises ModelError for an unknown layer, as on
    every rank."""
    names = [node.name for node in trained.graph.nodes]
    if layer is not None and layer not in names:
        raise everywhere(unknown_layer(layer, names))
    return trained.graph.shapes[layer or trained.graph.output]


def _rows(
    transport: Transport, trained: TrainedModel, sources: Sequence[Source], layer: str | None, targets: bool
) -> Iterator[PredictionRows]:
    before = 0
    for source in sources:
        labels = source.split.labels if source.split.has_classes else None
        for start, values in blocks(transport, trained, source.split, source.feed, layer):
            examples = range(start, start + len(values))
            bad = source.split.problems or {}
            unread = [[at - start, bad.pop(at)] for at in examples if at in bad]
            problems = {at: text for rank_problems in transport.gather_json(unread) for at, text in rank_problems}
            known = np.full(len(values), IGNORE) if labels is None else labels[start : examples.stop].copy()
            known[list(problems)] = IGNORE
            yield PredictionRows(
                start=before + start,
                names=[source.name(example) for example in examples],
                labels=known,
                values=values,
                problems=dict(sorted(problems.items())),
                targets=partial(_targets, source.split, start, values.shape) if targets else None,
            )
        before += source.split.count


def blocks(
    transport: Transport, trained: TrainedModel, split: Split, feed: DeviceInput, layer: str | None
) -> Iterator[tuple[int, np.ndarray]]:
    """(first example, values) of each block of a split, valid until the next. A rank has zeros in the rows of other
    ranks, so that the sum over ranks is the block, exactly. Examples of a grain stay together: each has the same bits
    at any number of ranks. Collective."""
    shape = shape_of(trained, layer)
    row_bytes = int(np.prod(shape)) * trained.ops.dtype.itemsize
    grain = max(1, min(EVALUATION_BATCH, GRAIN_BYTES // max(1, row_bytes)))
    batch, crop = grain * transport.size, crop_of(trained.graph)
    block = np.empty((min(batch, split.count), *shape), trained.ops.dtype)
    with evaluation_batches(split, batch, transport.rank, transport.size, grain, crop) as batches:
        for part in batches:
            start = part.iteration * batch
            rows = block[: part.total]
            rows.fill(0)
            if len(part.labels):
                rows[part.examples - start] = _output(trained, feed, part, layer)
            transport.native_allreduce_start(rows.reshape(-1)).wait(trained.config.exchange.deadline_s)
            yield start, rows


def _output(trained: TrainedModel, feed: DeviceInput, part: Batch, layer: str | None) -> np.ndarray:
    ctx = Pass(trained.ops, trained.space, training=False)
    x, _, ctx.examples = feed.load(ctx.space, part, 0, len(part.labels))
    y, _ = trained.graph.forward(ctx, x, upto=layer)
    if layer is not None:
        return ctx.ops.to_host(y)
    return feed.restored(ctx.ops.to_host(trained.loss.predict(ctx, y)))
