"""Workers push gradients; each server sums those of its shard, updates it, and sends the weights back. Exact.

A server adds gradients in the order of ranks, whichever arrive first, and answers when all workers have pushed:
staleness 0. It alone has the optimizer's state of its shard. Norms are made of the sums of squares of all shards.

With ``--overlap backward`` gradients travel as they become final. With ``forward`` weights travel during the next
forward pass too: the lowest layers come first, and each layer waits for its own alone.

Source: of the two levels, Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016; of pulls layer by layer, Das et al., Distributed
deep learning using synchronous stochastic gradient descent, Intel 2016.
"""

from ringtrain.exchange.base import Roles, Serving
from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE, summed_buckets
from ringtrain.exchange.buckets.reducer import InArrivalOrder, Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.servers.shards import Shards
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.optim.optimizers import Optimizer


class GradientPush:
    """Pushes each bucket's gradients to its server, which updates it, and pulls the weights."""

    updates_at_owner = True
    serving, notes = Serving(), ()

    def __init__(self, settings: ExchangeSettings, roles: Roles, shards: Shards, arena: Arena, optimizer: Optimizer):
        config, ops, grads = settings.config, settings.ops, arena.grads
        self._ops, self._arena, self._pieces, self._overlap = ops, arena, shards.pieces, config.overlap
        owned, total = shards.piece_of(settings.transport.rank), SumOverRanks(settings)
        self.update = OwnedUpdate(ops, arena, optimizer, grads, owned, config.clip_norm, total)
        self._gradients = shards.sums(grads, roles.trainers)
        forward = self._overlap == FORWARD
        self._weights = shards.broadcasts(arena.weights, roles.trainers, lowest_first=forward)
        self._pulls = InArrivalOrder(self._weights)
        self._missed = shards.broadcasts(arena.weights, roles.servers)
        self._gathers = shards.broadcasts(grads, range(settings.transport.size))
        self._own = shards.streams.own
        self._dedicated, self._behind = config.dedicated, False  # whether servers lack the weights of other shards
        self.reducers = Reducers(
            {"gradients": self._gradients, "weights": self._weights},
            others=[self._gathers, self._missed],
            before_close=self._pulls.wait_all,
        )

    @property
    def state_bytes(self) -> int:
        return self.update.nbytes

    @property
    def ready_points(self) -> frozenset[str]:
        return self._spans_of(self._gradients.ready_points) if self._overlap != NONE else frozenset()

    @property
    def wait_points(self) -> frozenset[str]:
        return self._spans_of(self._weights.ready_points) if self._overlap == FORWARD else frozenset()

    def _spans_of(self, names: frozenset[str]) -> frozenset[str]:
        """Names of the spans that have one of these pieces."""
        pieces = self._pieces.items()
        return frozenset(name for name, parts in pieces if any(piece.name in names for piece in parts))

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._own.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        self.update.rehearse()

    def before(self, examples: int, total: int) -> None:
        if not examples:  # no forward pass waits for weights, and gradients are zeroed at once
            self._pulls.wait_all()

    def before_read(self, span: Span) -> None:
        for piece in self._pieces[span.name] if self._overlap == FORWARD else ():
            self._pulls.before_read(piece)

    def grad_ready(self, span: Span) -> None:
        for piece in self._pieces[span.name] if self._overlap != NONE else ():
            self._gradients.grad_ready(piece)

    def finish(self, lr: float) -> None:
        """Send each bucket's weights back when they are updated, while other sums arrive; with ``forward`` when all are
        updated, the lowest first."""
        self.update.step += 1
        self._behind = self._dedicated
        for bucket in summed_buckets(self._gradients, self.update):
            self.update.apply(lr, bucket.start, bucket.stop)
            if self._overlap != FORWARD:
                self._weights.start_next()
        if self._overlap == FORWARD:
            self._pulls.start()
        else:
            self._weights.wait_all()

    def synchronize(self) -> None:
        self._pulls.wait_all()
        if self._behind:
            self._missed.wait_all()
            self._behind = False

    def gather(self) -> dict:
        return self.update.gathered(self._arena.grads, self._gathers.wait_all)
