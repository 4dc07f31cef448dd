"""Labels that make the loss NaN, whatever the network gives: one that is not finite, or no class."""

from collections.abc import Sequence

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.errors import DivergedError, everywhere
from ringtrain.nn.base import Shape
from ringtrain.nn.losses import Loss
from ringtrain.train import texts
from ringtrain.transport.base import Transport

WrongLabel = tuple[int, str]  # (example, the first such value in its label)


def wrong_labels(loss: Loss, batch: Batch, output: Shape) -> list[WrongLabel]:
    """The first such label of a rank's part of a batch, or none."""
    if not len(batch.labels):
        return []
    wrong = loss.unusable(batch.labels, output).reshape(len(batch.labels), -1)
    rows = np.flatnonzero(wrong.any(axis=1))
    if not rows.size:
        return []
    row = int(rows[batch.examples[rows].argmin()])
    value = batch.labels[row].reshape(-1)[wrong[row].argmax()]
    return [(int(batch.examples[row]), str(value))]


def raise_wrong_labels(transport: Transport, own: Sequence[WrongLabel], loss: Loss) -> None:
    """Raise DivergedError on every rank if one has such a label; it names the first example of all. Collective."""
    found = [tuple(each) for each in transport.gather_json(own[0] if own else None) if each is not None]
    if found:
        raise everywhere(label_error(min(found), loss))


def label_error(wrong: WrongLabel, loss: Loss) -> DivergedError:
    example, value = wrong
    return DivergedError(texts.WRONG_LABEL(example=example, value=value, loss=loss.name))
