"""The exchange in which each element of the arena has one owner: gradients go to the owner, which updates, and weights
come back. Exact.

1.  The sums of gradients go to the owners, bucket by bucket as gradients become final.
2.  Each owner updates its elements, and has the optimizer's state of those alone (:mod:`.update.owned_update`). Norms
    are made of the sums of squares of all owners.
3.  The weights of each bucket come back as soon as it is updated. With ``--overlap forward`` they travel while the next
    forward pass computes, the lowest layers first, and each layer waits for its own.

Who owns what, and how gradients and weights travel, is an :class:`Ownership`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ringtrain.exchange.base import BatchSource, Exchange, ExchangeFacts, OwnedState
from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE, BucketUpdater
from ringtrain.exchange.buckets.ownership import Ownership
from ringtrain.exchange.buckets.reducer import ForwardGate, Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer

Divide = Callable[[Arena, Optimizer], tuple[Ownership, Sequence[str]]]


class Owned(Exchange):
    """Sums gradients at the owners, which update, and brings the weights back to the ranks that train.

    divide:  returns the ownership of an arena, and notes
    batches: the source of examples, if one rank reads and owns all

    The whole state is gathered in the memory of the gradients, unless ``facts.state_is_local``: then rank 0 owns all.
    """

    def __init__(
        self, settings: ExchangeSettings, facts: ExchangeFacts, divide: Divide, batches: BatchSource | None = None
    ):
        self._settings, self.facts, self._divide = settings, facts, divide
        self._overlap, self.batches = settings.config.overlap, batches or self.batches

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, grads, roles, ops = self._settings, arena.grads, self.facts.roles, self._settings.ops
        owners, notes = self._divide(arena, optimizer)
        outgoing, forward = owners.indices_of(settings.transport.rank), self._overlap == FORWARD
        sums, meanwhile = SumOverRanks(settings), self._serve if owners.serves else None
        add = sums.add if owners.divides and optimizer.layerwise else None
        pieces, clip = owners.owned(settings.transport.rank), (settings.clip_norm, sums, settings.scale)
        self._arena, self._pieces, self._outgoing = arena, owners.pieces, outgoing
        self._update = update = OwnedUpdate(ops, arena, optimizer, grads, pieces, *clip, add)
        self._gradients = owners.sums(grads, roles.trainers, meanwhile, early=self._overlap != NONE)
        self._weights = owners.spreads(arena.weights, roles.trainers, meanwhile, lowest_first=forward)
        self._pulls = ForwardGate(self._weights, outgoing, alone=owners.serves)
        how = add is not None, self._send, self._weights.order, owners.serves
        self._updates = BucketUpdater(settings, update, self._gradients, *how)
        everyone, apart = range(settings.transport.size), set(roles.servers) - set(roles.trainers)
        self._state = None if self.facts.state_is_local else owners.spreads(grads, everyone)
        self._missed = owners.spreads(arena.weights, roles.servers) if apart else None
        self._behind = False  # whether servers that do not train lack the weights of other owners
        # A device may hold messages back: they leave when tested, and a wait for the loss tests none.
        self._last = arena.spans[-1].name if owners.serves and owners.streams.is_device else None
        self.rehearsed = [update]
        self.owned_state = OwnedState(update, self.synchronize, gather=self._gather)
        self.reducers = Reducers(
            {"gradients": self._gradients, "weights": self._weights},
            others=[each for each in (self._state, self._missed) if each],
            messages=[self.batches],
            received=None if roles.loader is None else self._received,
            before_close=self._complete,
        )
        self.ready_points = self._spans_of(self._gradients.ready_points)
        self.wait_points = self._spans_of(self._weights.ready_points) if forward else frozenset()
        self.facts = replace(self.facts, notes=notes, state_bytes=update.nbytes)

    def _received(self) -> int:
        """Return the bytes that this rank has received: of gradients and weights as many as it has sent, since every
        other rank sends all gradients to one, and gets all weights."""
        return self._gradients.bytes_sent + self._weights.bytes_sent + self.batches.bytes_received

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
        for piece in self._pieces[span.name]:
            self._gradients.grad_ready(piece)

    def complete(self) -> None:
        self._updates.complete()

    def finish(self, iteration: int, lr: float) -> None:
        """Update each bucket when its sum has arrived, and send its weights back at once. Owners that serve do so, with
        ``forward``, whenever this rank waits or goes from layer to layer, until it has read them all."""
        self._behind = self._missed is not None
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
        if index in self._outgoing:
            self._weights.release(index, exposed)

    def _complete(self) -> None:
        self._updates.synchronize()
        self._pulls.wait_all()

    def synchronize(self) -> None:
        self._complete()
        if self._missed is not None and self._behind:
            self._missed.wait_all()
            self._behind = False

    def _gather(self) -> dict:
        if self._state is not None:
            return self._update.gathered(self._arena.grads, self._state.wait_all)
        return self._update.state() if self._update.pieces else {STEP: self._update.step}
