"""Workers push gradients; each server sums the gradients of its shard, updates it, and sends the weights back. Exact.

A server adds gradients in the order of ranks, whichever arrive first, and answers when all workers have pushed:
staleness 0. It alone has the optimizer's state of its shard. Norms are made of the sums of squares of all shards.

With ``--overlap backward`` gradients travel as they become final, and a server sends each bucket back when its sum has
arrived. With ``forward`` no rank waits for that after backward. Each goes on to the next forward pass, where a layer
waits for its own weights alone; a server updates and sends whatever has arrived, the lowest bucket first, between
layers and every 0.5 ms while it waits. A rank that has read all weights has started to send all those that it owns: so
it need not serve while it waits for activations or for the loss. On a device, where a message may leave later, it waits
until others have them. A dedicated server, which reads none, serves at once.

Source: of the two levels, Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016; of pulls layer by layer, Das et al., Distributed
deep learning using synchronous stochastic gradient descent, Intel 2016.
"""

from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE, BucketUpdater
from ringtrain.exchange.buckets.reducer import ForwardGate, Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.servers.parameter_server import ParameterServer
from ringtrain.exchange.servers.shards import Shards
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class GradientPush(ParameterServer):
    """Pushes each bucket's gradients to its server, which updates it, and pulls the weights."""

    updates_at_owner = True

    def _bind(self, shards: Shards, optimizer: Optimizer) -> tuple[OwnedUpdate, list[str]]:
        settings, roles, arena = self._settings, self._roles, self._arena
        config, grads = settings.config, arena.grads
        self._pieces, self._overlap = shards.pieces, config.overlap
        owned, total = shards.piece_of(settings.transport.rank), SumOverRanks(settings).square_norm
        update = OwnedUpdate(self._ops, arena, optimizer, grads, owned, settings.clip_norm, total)
        forward = self._overlap == FORWARD
        self._gradients = shards.sums(grads, roles.trainers, self._serve)
        self._weights = shards.broadcasts(arena.weights, roles.trainers, self._serve, lowest_first=forward)
        self._served = shards.indices_of(settings.transport.rank)
        self._pulls = ForwardGate(self._weights, self._served)
        self._updates = BucketUpdater(settings, update, self._gradients, updated=self._send)
        self._missed = shards.broadcasts(arena.weights, roles.servers)
        self._gathers = shards.broadcasts(grads, range(settings.transport.size))
        # A device may hold messages back: they leave when tested, and a wait for activations or the loss tests none.
        self._last = arena.spans[-1].name if shards.streams.is_device else None
        self._dedicated, self._behind = config.dedicated, False  # whether servers lack the weights of other shards
        self.reducers = Reducers(
            {"gradients": self._gradients, "weights": self._weights},
            others=[self._gathers, self._missed],
            before_close=self._complete,
        )
        if self._overlap != NONE:
            self.ready_points = self._spans_of(self._gradients.ready_points)
        if forward:
            self.wait_points = self._spans_of(self._weights.ready_points)
        if not forward or settings.clip_norm is None:
            return update, []
        return update, [
            "with --overlap forward servers send buckets back when all gradients have arrived: only then is "
            f"the factor of --clip-norm {settings.clip_norm:g} known"
        ]

    def _spans_of(self, names: frozenset[str]) -> frozenset[str]:
        """Names of the spans that have one of these pieces."""
        pieces = self._pieces.items()
        return frozenset(name for name, parts in pieces if any(piece.name in names for piece in parts))

    def before(self, iteration: int, examples: int, total: int) -> None:
        if not examples:  # no forward pass waits for weights, and gradients are zeroed at once
            self._complete()

    def before_read(self, span: Span) -> None:
        if self._overlap != FORWARD:
            return
        self._serve(exposed=True)
        for piece in self._pieces[span.name]:
            self._updates.before_read(piece)
            self._pulls.before_read(piece)
        if span.name == self._last:
            self._pulls.wait_all()

    def grad_ready(self, span: Span) -> None:
        for piece in self._pieces[span.name] if self._overlap != NONE else ():
            self._gradients.grad_ready(piece)

    def complete(self) -> None:
        self._updates.complete()

    def finish(self, iteration: int, lr: float) -> None:
        """Update each bucket when its sum has arrived, and send its weights back at once. With ``forward`` that happens
        whenever this rank waits or goes from layer to layer, until it has read them all."""
        self._behind = self._dedicated
        self._pulls.start()
        self._updates.finish(lr)
        if self._overlap == FORWARD:
            self._serve(exposed=True)
        else:
            self._pulls.wait_all()

    def _serve(self, exposed: bool = False) -> None:
        """Update and send the buckets whose sums have arrived, and pass messages on, without waiting. ``exposed``: no
        wait counts this time."""
        self._updates.apply_landed(exposed)
        self._weights.test(exposed)

    def _send(self, index: int, exposed: bool) -> None:
        if index in self._served:
            self._weights.release(index, exposed)

    def _complete(self) -> None:
        self._updates.synchronize()
        self._pulls.wait_all()

    def synchronize(self) -> None:
        self._complete()
        if self._behind:
            self._missed.wait_all()
            self._behind = False

    def _gather(self) -> dict:
        return self._update.gathered(self._arena.grads, self._gathers.wait_all)
