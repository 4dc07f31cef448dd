"""Every rank updates the shard that it owns, and keeps the optimizer's state of that shard alone. Exact.

1.  The first half of an all-reduce sums gradients, bucket by bucket while backward runs: a rank ends with the sums of
    its shard.
2.  It updates the weights of its shard.
3.  The second half gathers the weights. With ``--overlap forward`` they travel while the next forward pass computes,
    the lowest layers first, and each layer waits for its own.

Bytes: an all-reduce's. Memory: weights and gradients, and the optimizer's state divided by the ranks. Shards
are cut without regard to parameters: norms, of a whole gradient or a whole parameter, are made of the sums of squares
of all shards. The whole state is gathered for a checkpoint by the second half too, in the memory of the gradients.

Source: Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016; Rajbhandari et al., ZeRO, SC 2020 (stage 1).
"""

from collections.abc import Iterator
from dataclasses import replace

from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, all_train
from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE
from ringtrain.exchange.buckets.reduce_scatter import ReduceScatterAllGather, schedule_name
from ringtrain.exchange.buckets.reducer import ForwardGate, Reducer, Reducers
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.exchange.update.ranges import elements
from ringtrain.humanize import format_bytes
from ringtrain.memory.arena import Arena
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class Sharded(Exchange):
    """Sums gradients by a reduce-scatter, updates this rank's shard, and gathers the weights.

    divides_parameters: whether a parameter may lie in the shards of several ranks
    """

    divides_parameters = True

    def __init__(self, settings: ExchangeSettings, algorithm: str | None = None):
        self._settings, self._streams = settings, stream_pair(settings.ops)
        self._algorithm = algorithm or schedule_name(settings.config.algorithm, settings.transport)
        self._overlap = settings.config.overlap
        self._sum_over_ranks = SumOverRanks(settings)
        self.facts = ExchangeFacts(
            name="sharded", roles=all_train(settings.transport.size), exact=True, state_is_local=False
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        transport, config, grads = self._settings.transport, self._settings.config, arena.grads
        self._arena = arena
        buckets = make_buckets(arena.spans, grads.dtype.itemsize, config.bucket_bytes)
        halves = ReduceScatterAllGather(self._algorithm, self._settings, self._streams.exchange, buckets)
        owned, ops = halves.owned(transport.rank), self._settings.ops
        total, scale = self._sum_over_ranks.square_norm, self._settings.scale
        add = self._sum_over_ranks.add if self.divides_parameters else None
        self._update = OwnedUpdate(ops, arena, optimizer, grads, owned, self._settings.clip_norm, total, scale, add)
        self._at_once = self._update.needs_all or (optimizer.layerwise and self.divides_parameters)
        lowest_first = range(len(buckets))[::-1] if self._overlap == FORWARD else None
        how = config.deadline_s, self._streams
        self._gradients = Reducer(buckets, halves.scatters(grads, 0), *how, early=self._overlap != NONE)
        self._weights = Reducer(buckets, halves.gathers(arena.weights, 1), *how, order=lowest_first)
        self._coming = ForwardGate(self._weights)
        if not self.facts.state_is_local:
            self._state = Reducer(buckets, halves.gathers(grads, 2), *how)
        self.rehearsed = [self._update]
        self.owned_state = OwnedState(self._update, self.synchronize, gather=self._gather)
        self.reducers = self._make_reducers({"gradients": self._gradients, "weights": self._weights})
        shares = [elements(halves.owned(rank)) for rank in range(transport.size)]
        notes = [self._memory(shares, grads.dtype.itemsize * len(optimizer.slots))]
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)
        self.ready_points = self._gradients.ready_points
        self.wait_points = self._weights.ready_points if self._overlap == FORWARD else frozenset()

    def _make_reducers(self, training: dict[str, Reducer]) -> Reducers:
        return Reducers(training, others=[self._state])

    def _gather(self) -> dict:
        """Return the optimizer's whole state, on rank 0 at least. Collective, unless ``facts.state_is_local``."""
        return self._update.gathered(self._arena.grads, self._state.wait_all)

    def _memory(self, shares: list[int], nbytes: int) -> str:
        """Say how much of the optimizer's state, ``nbytes`` an element, each rank keeps."""
        least, most, whole = (format_bytes(nbytes * count) for count in (min(shares), max(shares), sum(shares)))
        each = most if least == most else f"{least} to {most}"
        return f"sharded by {self._algorithm}: a rank keeps {each} of the optimizer's {whole}"

    def before(self, iteration: int, examples: int, total: int) -> None:
        """Wait for the weights now on a rank without examples, which runs no forward pass."""
        if not examples:
            self.synchronize()

    def before_read(self, span: Span) -> None:
        self._coming.before_read(span)

    def grad_ready(self, span: Span) -> None:
        self._gradients.grad_ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        """Gather the weights of each bucket as soon as it is updated, while other sums still arrive."""
        for bucket in self._summed(lr):
            self._update.apply(bucket.start, bucket.stop)
            self._weights.start_next()
        self._coming.start()
        if self._overlap != FORWARD:
            self.synchronize()

    def _summed(self, lr: float) -> Iterator[Bucket]:
        """Begin an update, and return the buckets, each when its sum has arrived, in the order in which weights are
        gathered; all at once if norms or a loss scale need every gradient."""
        sums, order = self._gradients, self._weights.order
        if self._at_once:
            sums.wait_all()
            self._update.begin(lr)
            return (sums.buckets[index] for index in order)
        self._update.begin(lr)
        sums.start()
        return (sums.arrive(index) for index in order)

    def synchronize(self) -> None:
        self._coming.wait_all()
