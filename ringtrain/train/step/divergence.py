"""Ends a run whose loss is not finite, with the name of its cause: an example that makes the loss NaN, whatever the
network (an input that is not finite; a label that is not, or is no class); or the first layer that gives a non-finite
value."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.errors import DivergedError, everywhere
from ringtrain.exchange.base import Exchange
from ringtrain.nn.base import Shape
from ringtrain.nn.losses import Loss
from ringtrain.train.step.loss_sum import IterationLoss, LossAllReduce
from ringtrain.train.step.partition import RankBatch
from ringtrain.train.step.passes import ModelPasses
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for

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
        raise everywhere(DivergedError(min(wrong)[1]))


class Divergence:
    """Raises DivergedError."""

    def __init__(self, exchange: Exchange, transport: Transport, passes: ModelPasses, losses: LossAllReduce):
        self._exchange, self._transport, self._passes, self._losses = exchange, transport, passes, losses

    def raise_everywhere(self, outcome: IterationLoss, batch: RankBatch) -> None:
        """End every rank; the error names the first such layer of any rank. Collective."""
        facts = self._exchange.facts
        if facts.roles.parts:
            self._exchange.synchronize()  # the weights that other ranks hold
        # Slower ranks need service until they start this iteration's sum, and learn of the loss.
        for pending in self._losses.pending():
            wait_for(partial(self._poll, pending), self._losses.deadline_s, lambda: "ranks that are behind")
        raise_wrong_examples(self._transport, self._wrong_examples(batch))
        everyone = self._transport.gather_json(self._first_nonfinite(batch))
        layers = [(*layer, rank) for rank, layer in enumerate(everyone) if layer is not None]
        _, where, rank = min(layers, default=(None, None, None))
        raise everywhere(_error(outcome, where, rank))

    def raise_here(self, outcome: IterationLoss, batch: RankBatch) -> None:
        """End this rank alone; the error names its own first such layer."""
        for _, problem in self._wrong_examples(batch):
            raise DivergedError(problem)
        layer = self._first_nonfinite(batch)
        raise _error(outcome, layer[1] if layer else None, self._transport.rank)

    def _wrong_examples(self, batch: RankBatch) -> list[WrongExample]:
        return wrong_examples(self._passes.loss, batch.batch, self._passes.output)

    def _first_nonfinite(self, batch: RankBatch) -> tuple[int, tuple[str, str]] | None:
        """(place in the plan, (layer, cause)) of the first such layer; None if all values of this rank are finite."""
        index = self._passes.first_nonfinite(batch.batch, batch.micro)
        if index is None:
            return None
        node = self._passes.graph.plan[index]
        return index, (node.name, node.layer.nonfinite_cause())

    def _poll(self, pending: Handle) -> bool:
        self._exchange.serving.poll()
        return pending.test()


def _error(outcome: IterationLoss, layer: tuple[str, str] | None, rank: int | None) -> DivergedError:
    where = "every layer's output is finite, so the loss itself overflowed"
    if layer is not None:
        name, cause = layer
        where = f"the first layer with a non-finite value is {name!r} (on rank {rank}){cause and f', {cause}'}"
    return DivergedError(
        f"the loss is {outcome.loss_sum:g} at iteration {outcome.iteration + 1}: {where}. Lower --lr, add "
        "--warmup or --clip-norm, and go on from an earlier checkpoint with --resume"
    )
