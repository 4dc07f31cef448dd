"""Double buffering: the gradient of the iteration before is applied while this iteration's is exchanged. Approximate.

::

    iteration      0         1            2
    backward       g0        g1           g2
    exchange          ── g0 ──   ── g1 ──    ── g2 ──
    update         nothing   with g0      with g1

An iteration ends with the update by the sum of the iteration before. Then its own gradients are copied to the free
buffer, and their exchange starts. Weights are the same on all ranks at all times. The pending gradient belongs to the
state, so a resumed run goes on exactly. Evaluations see the weights without it; the last iteration's gradient is never
applied.

Source: double buffering of ChainerMN 1.3, Preferred Networks 2018.
"""

from dataclasses import replace

from ringtrain.arrays import Array
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, all_train
from ringtrain.exchange.buckets.deferred_update import FORWARD
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.compression.error_feedback import make_gradient_reduction
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedArray, OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.optim.optimizers import Optimizer

PENDING = "pending"


class PendingGradient:
    """The gradient that waits to be applied; a state has it if ``is_set``."""

    required_names, optional_names = (), (PENDING,)

    def __init__(self, ops: Ops, buffer: Array):
        self._ops, self.buffer, self.is_set = ops, buffer, False

    def state(self) -> dict:
        return {PENDING: self._ops.to_host(self.buffer)} if self.is_set else {}

    def restore(self, state: dict) -> None:
        self.is_set = PENDING in state
        if self.is_set:
            self._ops.upload(state[PENDING], self.buffer)


class Delayed(Exchange):
    """Applies the sum of an iteration's gradients at the end of the next iteration."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._ops = settings, settings.ops
        self._reduction = make_gradient_reduction(settings)
        self.facts = ExchangeFacts(
            name="delayed",
            header=", ".join(filter(None, ("by one iteration", self._reduction.header))),
            roles=all_train(settings.transport.size),
            exact=False,
            state_is_local=False,  # the sum under way has to arrive first
        )
        self._in_flight = False  # whether the pending sum may still be under way

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        self._arena = arena
        buffer = self._settings.transport.allocate(arena.count, arena.grads.dtype)
        self._update = OwnedUpdate(self._ops, arena, optimizer, buffer, everything(arena), self._settings.clip_norm)
        self._gradients = self._reduction.bind(arena.spans, buffer)
        self._pending = PendingGradient(self._ops, buffer)
        self.owned_state = OwnedState(
            self._update,
            self.synchronize,
            replicated=lambda: True,
            parts=[self._pending, self._reduction],
            arrays=lambda: [OwnedArray(PENDING, buffer, self._update.pieces, True)] if self._pending.is_set else [],
        )
        self.rehearsed = [self._update, self._reduction]
        self.reducers = Reducers({"gradients": self._gradients}, before_close=self.synchronize)
        notes = [*self._reduction.notes]
        if self._settings.config.overlap == FORWARD:
            notes.append(
                "--overlap forward is backward here: a sum already has one iteration to arrive before it is applied, "
                "and a later update would delay the next sum, too"
            )
        state_bytes = self._update.nbytes + arena.count * arena.grads.dtype.itemsize
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._reduction.before(iteration)

    def before_read(self, span: Span) -> None:
        self._gradients.test()

    def grad_ready(self, span: Span) -> None:
        self._gradients.test()

    def finish(self, iteration: int, lr: float) -> None:
        if self._pending.is_set:
            self._apply(lr)
        self._ops.copy(self._arena.grads, self._pending.buffer)
        self._gradients.start()
        self._pending.is_set = self._in_flight = True

    def _apply(self, lr: float) -> None:
        """Update by the pending gradient, bucket by bucket as they arrive; all at once if its norm is clipped."""
        if self._update.needs_all:
            self.synchronize()
        self._update.begin(lr)
        for bucket in self._gradients.arrivals() if self._in_flight else self._gradients.buckets:
            self._update.apply(bucket.start, bucket.stop)

    def synchronize(self) -> None:
        """Wait for the sum under way. It stays pending: results do not depend on the moments of evaluations."""
        if self._in_flight:
            self._gradients.wait_all()
            self._in_flight = False
