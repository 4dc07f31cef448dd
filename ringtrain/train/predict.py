"""Writes the probabilities of every example, or the output of a layer, block by block into a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain.data.batches.batches import Batch, evaluation_batches
from ringtrain.data.predictions import PredictionFile, open_predictions
from ringtrain.errors import ModelError, everywhere, nearest
from ringtrain.nn import texts as nn_texts
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import check_output
from ringtrain.train.agree import agree, on_root, together
from ringtrain.train.evaluate import EVALUATION_BATCH, crop_of
from ringtrain.train.load import TrainedModel
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Predicted:
    """The count of written examples. ``accuracy``: on those with a label; None for features or without labels."""

    examples: int
    accuracy: float | None


def write_predictions(
    transport: Transport, trained: TrainedModel, out: Path, layer: str | None, force: bool
) -> Predicted:
    """Write the network's output for each example of the split, in order. Rank 0 writes; collective."""
    agree(transport, {"out": str(out), "features": layer, "force": force})
    if layer is None:
        together(transport, lambda: check_output(trained.loss, trained.graph, trained.data))
    shape = _shape_of(trained, layer)
    made: list[PredictionFile] = []

    def make() -> None:
        about = {
            "model": trained.model.name,
            "checkpoint": trained.path,
            "data": trained.data.name,
            "layer": layer or "",
        }
        made.append(open_predictions(out, trained.split.count, shape, trained.data.classes, layer, about, force))

    on_root(transport, make)
    try:
        for start, rows in _blocks(transport, trained, layer, shape):
            for file in made:
                file.write(start, trained.split.labels[start : start + len(rows)], rows)
        for file in made:
            file.finish()
    finally:
        for file in made:
            file.discard()
    return Predicted(trained.split.count, made[0].accuracy if made else None)


def _shape_of(trained: TrainedModel, layer: str | None) -> tuple[int, ...]:
    names = [node.name for node in trained.graph.nodes]
    if layer is not None and layer not in names:
        raise everywhere(ModelError(nn_texts.UNKNOWN_LAYER(layer=layer, hint=nearest(layer, names))))
    return trained.graph.shapes[layer or trained.graph.output]


def _blocks(
    transport: Transport, trained: TrainedModel, layer: str | None, shape: tuple[int, ...]
) -> Iterator[tuple[int, np.ndarray]]:
    """(first example, values) of each block. A rank has zeros in the rows of other ranks, so that the sum over ranks is
    the block, exactly. Examples of a grain stay together: each has the same bits at any number of ranks."""
    batch, crop = EVALUATION_BATCH * transport.size, crop_of(trained.graph)
    block = np.empty((batch, *shape), trained.ops.dtype)
    with evaluation_batches(trained.split, batch, transport.rank, transport.size, EVALUATION_BATCH, crop) as batches:
        for part in batches:
            start = part.iteration * batch
            rows = block[: part.total]
            rows.fill(0)
            if len(part.labels):
                rows[part.examples - start] = _output(trained, part, layer)
            transport.native_allreduce_start(rows.reshape(-1)).wait(trained.config.deadline_s)
            yield start, rows


def _output(trained: TrainedModel, part: Batch, layer: str | None) -> np.ndarray:
    ctx = Pass(trained.ops, trained.space, training=False)
    x, _, ctx.examples = trained.feed.load(ctx.space, part, 0, len(part.labels))
    y, _ = trained.graph.forward(ctx, x, upto=layer)
    if layer is None:
        y = trained.loss.predict(ctx, y)
    return ctx.ops.to_host(y)
