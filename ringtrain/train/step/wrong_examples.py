"""Examples that make the loss NaN, whatever the network: an input that is not finite; a label that is not, or is no
class."""

from collections.abc import Sequence

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.errors import DivergedError, everywhere
from ringtrain.nn.base import Shape
from ringtrain.nn.losses import Loss
from ringtrain.transport.base import Transport

WrongExample = tuple[int, str]  # (example, what is wrong with it, for people)


def wrong_examples(loss: Loss, batch: Batch, output: Shape) -> list[WrongExample]:
    """The first such example of a rank's part of a batch, or none."""
    wrong: list[WrongExample] = []
    for part in filter(None, (batch, batch.partner)):
        if len(part.labels):
            wrong += _first(
                part.examples,
                part.labels,
                loss.unusable(part.labels, output),
                lambda example, value: (
                    f"the label of example {example:,} is {value}, for which --loss {loss.name} is not defined"
                ),
            )
            if part.images.size and part.images.dtype.kind == "f":
                wrong += _first(
                    part.examples,
                    part.images,
                    ~np.isfinite(part.images),
                    lambda example, value: f"the input of example {example:,} has the value {value}",
                )
    return sorted(wrong)[:1]


def _first(examples, values, wrong, describe) -> list[WrongExample]:
    wrong = wrong.reshape(len(values), -1)
    rows = np.flatnonzero(wrong.any(axis=1))
    if not rows.size:
        return []
    row = int(rows[examples[rows].argmin()])
    value = values[row].reshape(-1)[wrong[row].argmax()]
    advice = "no network can learn it; correct the data set, or leave the example out"
    return [(int(examples[row]), f"{describe(examples[row], value)}: {advice}")]


def raise_wrong_examples(transport: Transport, examples: Sequence[WrongExample]) -> None:
    """Raise DivergedError on every rank if one has such an example; it names the first one of all. Collective."""
    wrong = [tuple(each) for each in transport.gather_json(examples[0] if examples else None) if each is not None]
    if wrong:
        raise everywhere(example_error(min(wrong)))


def example_error(wrong: WrongExample) -> DivergedError:
    return DivergedError(wrong[1])
