"""Ends a run whose loss is not finite, with the name of the first layer that gives a non-finite value."""

from functools import partial

from ringtrain.errors import DivergedError, everywhere
from ringtrain.exchange.base import Exchange
from ringtrain.train.step.loss_sum import IterationLoss, LossAllReduce
from ringtrain.train.step.partition import RankBatch
from ringtrain.train.step.passes import ModelPasses
from ringtrain.train.step.wrong_examples import example_error, raise_wrong_examples
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for


class Divergence:
    """Raises DivergedError. ``in_parts``: whether ranks hold parts of the network."""

    def __init__(
        self,
        exchange: Exchange,
        transport: Transport,
        passes: ModelPasses,
        losses: LossAllReduce,
        deadline_s: float,
        in_parts: bool,
    ):
        self._exchange, self._transport, self._passes = exchange, transport, passes
        self._losses, self._deadline_s, self._in_parts = losses, deadline_s, in_parts

    def raise_everywhere(self, outcome: IterationLoss, batch: RankBatch) -> None:
        """End every rank; the error names the first such layer of any rank. Collective."""
        if self._in_parts and not self._exchange.facts.max_iteration_lag:
            self._exchange.synchronize()  # the weights that other ranks hold
        # Slower ranks need service until they start this iteration's sum, and learn of the loss.
        for pending in self._losses.pending():
            wait_for(partial(self._poll, pending), self._deadline_s, lambda: "ranks that are behind")
        raise_wrong_examples(self._transport, self._passes.wrong_examples(batch.batch))
        everyone = self._transport.gather_json(self._first_nonfinite(batch))
        layers = [(*layer, rank) for rank, layer in enumerate(everyone) if layer is not None]
        _, where, rank = min(layers, default=(None, None, None))
        raise everywhere(self._error(outcome, where, rank))

    def raise_here(self, outcome: IterationLoss, batch: RankBatch) -> None:
        """End this rank alone; the error names its own first such layer."""
        for wrong in self._passes.wrong_examples(batch.batch):
            raise example_error(wrong)
        layer = self._first_nonfinite(batch)
        raise self._error(outcome, layer[1] if layer else None, self._transport.rank)

    def _first_nonfinite(self, batch: RankBatch) -> tuple[int, tuple[str, str]] | None:
        """(place in the plan, (layer, cause)) of the first such layer; None if all values of this rank are finite."""
        index = self._passes.first_nonfinite(batch.batch, batch.micro)
        if index is None:
            return None
        node = self._passes.graph.plan[index]
        return index, (node.name, node.layer.nonfinite_cause())

    def _error(self, outcome: IterationLoss, layer: tuple[str, str] | None, rank: int | None) -> DivergedError:
        where = "every layer's output is finite, so the loss itself overflowed"
        if layer is not None:
            name, cause = layer
            where = f"the first layer with a non-finite value is {name!r} (on rank {rank}){cause and f', {cause}'}"
        return DivergedError(
            f"the loss is {outcome.loss_sum:g} at iteration {outcome.iteration + 1}: {where}. Lower --lr, add "
            "--warmup or --clip-norm, and go on from an earlier checkpoint with --resume"
        )

    def _poll(self, pending: Handle) -> bool:
        self._exchange.serving.poll()
        return pending.test()
