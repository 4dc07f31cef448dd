"""Synchronous data parallelism: gradients are summed over all ranks, and every rank makes the same update. Exact.

Gradients travel in buckets, from the arena's end to its start, about the order in which backward completes them. All
ranks start buckets in the same order. With ``--overlap forward`` a bucket's update waits until the next forward pass
reads its weights (:mod:`ringtrain.exchange.buckets.deferred_update`).

With ``--reproducible`` sums are over shards of the batch in place of ranks, in one tree: bitwise the same at any number
of ranks (:mod:`ringtrain.exchange.buckets.reproducible`). With ``--wire`` messages and sums are rounded to 16 bits: the
weights of all ranks stay equal, but differ from a run's on one rank.
"""

from collections.abc import Callable
from dataclasses import replace

from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.deferred_update import BucketUpdater
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.reproducible import ReproducibleAllReduce
from ringtrain.exchange.compression.error_feedback import make_gradient_reduction
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class AllReduce(Exchange):
    """Sums gradients over all ranks; every rank makes the same update."""

    # maps the sum of squares of the gradients over the arena to the sum of all gradients that are clipped together;
    # None: there are no others
    _add_square_norm: Callable[[float], float] | None = None

    def __init__(self, settings: ExchangeSettings):
        config = settings.config
        self._settings, self._elastic = settings, config.elastic is not None
        self._reproducible = ReproducibleAllReduce(settings) if config.reproducible else None
        self._reduction = self._reproducible or make_gradient_reduction(settings)
        self._min_examples = config.shards if self._reproducible else 1
        self.facts = ExchangeFacts(
            name="allreduce",
            header=self._reduction.header,
            roles=all_train(settings.transport.size),
            exact=self._reduction.exact,
            state_is_local=self._reduction.state_is_local,
            survives_rank_loss=self._elastic and self._reduction.state_is_local,
            script_steps=True,
            shards=self._reproducible.shards if self._reproducible else None,
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, grads, pieces = self._settings, arena.grads, everything(arena)
        clip_norm, total, scale = settings.clip_norm, self._add_square_norm, settings.scale
        update = OwnedUpdate(settings.ops, arena, optimizer, grads, pieces, clip_norm, total, scale)
        self._update = update
        self._gradients = self._reduction.bind(arena.spans, grads)
        self._updates = BucketUpdater(settings, update, self._gradients, self._elastic)
        self.owned_state = OwnedState(update, self.synchronize, replicated=lambda: True, parts=[self._reduction])
        self.reducers = Reducers({"gradients": self._gradients})
        self.rehearsed = [update, self._reduction]
        self.ready_points, self.wait_points = self._gradients.ready_points, self._updates.wait_points
        state_bytes = update.nbytes + (self._reproducible.nbytes if self._reproducible else 0)
        notes = [*self._reduction.notes, *filter(None, [self._updates.note])]
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    def recordable_update(self) -> OwnedUpdate | None:
        plain = type(self._reduction) is BucketedAllReduce and self._reduction.exact
        return self._update if plain and self._settings.transport.size == 1 and self._update.recorded else None

    def before(self, iteration: int, examples: int, total: int) -> None:
        """Complete the last updates now on a rank with no examples, or with an empty shard: no forward pass does it
        there, and this iteration writes the gradients that they read."""
        if not examples or total < self._min_examples:
            self._updates.synchronize()
        self._reduction.before(iteration)

    def before_read(self, span: Span) -> None:
        self._updates.before_read(span)

    def shard_grad_ready(self, span: Span) -> None:
        assert self._reproducible is not None, "facts.shards is not None"
        self._reproducible.shard_grad_ready(span)

    def grad_ready(self, span: Span) -> None:
        self._gradients.grad_ready(span)

    def complete(self) -> None:
        self._updates.complete()

    def finish(self, iteration: int, lr: float) -> None:
        self._updates.finish(lr)

    def synchronize(self) -> None:
        """Complete the updates that wait for the next forward pass."""
        self._updates.synchronize()
