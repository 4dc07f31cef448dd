"""Double buffering: the gradient of the iteration before is applied while this one's is exchanged. Approximate.

::

    iteration      0         1            2
    backward       g0        g1           g2
    exchange          ── g0 ──   ── g1 ──    ── g2 ──
    update         nothing   with g0      with g1

An iteration ends with the update by the sum of the gradients of the iteration before, which has had a whole forward and
backward pass to arrive in. Then this iteration's gradients are copied to the buffer that has become free, and set off.
Weights are the same on all ranks at all times, and do not depend on their number; but each gradient was taken at the
weights of one update earlier.

The gradient that waits to be applied belongs to the state: a run that goes on from a checkpoint goes on exactly.
Evaluations see the weights as they are, without it. That of the last iteration is never applied.

Source: double buffering of ChainerMN 1.3, Preferred Networks 2018.
"""

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.deferred_update import BACKWARD, FORWARD
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.compression.catalogue import compression_of, make_summing
from ringtrain.exchange.compression.error_feedback import CompressionSettings
from ringtrain.exchange.settings import ExchangeSettings, settings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import OwnedArray, OwnedUpdate, check_names, everything
from ringtrain.transport.base import Transport

PENDING = "pending"


class Delayed(Exchange):
    """clip_norm:   the largest global norm of the summed gradient; None for no limit
    overlap:     backward or forward, which are the same here
    compression: of what travels; None for none
    how:         arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`
    """

    name = "delayed"
    exact = False
    state_is_local = False  # what is on its way has to arrive first

    def __init__(
        self,
        transport: Transport,
        ops,
        clip_norm: float | None = None,
        overlap: str = BACKWARD,
        compression: CompressionSettings | None = None,
        **how,
    ):
        self._overlap = overlap
        self._transport, self._ops, self._clip_norm = transport, ops, clip_norm
        self._summing = make_summing(compression, transport, ops, **how)
        self.terms = ", ".join(filter(None, (texts.ONE_LATE, self._summing.terms)))
        self._pending = False  # whether the buffer holds a gradient that is not yet applied
        self._travelling = False  # whether that is not yet known to have arrived

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._buffer = self._transport.allocate(arena.count, arena.grads.dtype)
        self._update = OwnedUpdate(self._ops, arena, optimizer, self._buffer, everything(arena))
        self.state_bytes = self._update.nbytes + arena.count * arena.grads.dtype.itemsize
        self._sums = self._summing.bind(arena.spans, self._buffer)
        self.notes = [*self._summing.notes, *([texts.SUMS_APPLIED_LATE] if self._overlap == FORWARD else [])]
        self._trained = trained_runs(arena.spans)

    def rehearse(self) -> None:
        nothing = self._buffer[:0]
        self._summing.rehearse(nothing)
        self._ops.copy(nothing, nothing)
        if self._clip_norm is not None:
            rehearse_clip(self._ops, nothing)
        self._update.rehearse()

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._summing.before(iteration)

    def before_read(self, span) -> None:
        """Between layers is the time to let the exchange get on."""
        self._sums.test()

    def grad_ready(self, span) -> None:
        self._sums.test()

    def finish(self, iteration: int, lr: float) -> None:
        if self._pending:
            self._apply(lr)
        self._ops.copy(self._arena.grads, self._buffer)
        self._sums.start()
        self._pending = self._travelling = True

    def _apply(self, lr: float) -> None:
        """Update by the gradient that waits, bucket by bucket as they arrive; all at once where the norm decides."""
        self._update.step += 1
        if self._clip_norm is not None:
            self.synchronize()
            clip(self._ops, self._buffer, self._trained, self._clip_norm)
        for bucket in self._sums.arrivals() if self._travelling else self._sums.buckets:
            self._update.apply(lr, bucket.start, bucket.stop)

    def synchronize(self) -> None:
        """What is on its way arrives. It waits to be applied as before: nothing that is learnt depends on when
        somebody looked."""
        if self._travelling:
            self._sums.wait_all()
            self._travelling = False

    def state(self) -> dict:
        self.synchronize()
        pending = {PENDING: self._ops.to_host(self._buffer)} if self._pending else {}
        return {**self._update.state(), **pending, **self._summing.state()}

    def kept(self):
        pending = [OwnedArray(PENDING, self._buffer, self._update.pieces, True)] if self._pending else []
        return [*self._update.kept(alike=True), *pending]

    def check_names(self, names) -> None:
        check_names(names, self._update.slots, optional=(PENDING, *self._summing.held))

    def restore(self, state: dict) -> None:
        """What an all-reduce kept will do: then nothing is pending. Raises CheckpointError where the state is another
        optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)
        self._summing.restore(state)
        self._pending = PENDING in state
        if self._pending:
            self._ops.upload(state[PENDING], self._buffer)

    def reducers(self) -> dict:
        return {"gradients": self._sums}

    def traffic(self) -> Traffic:
        return Traffic(self._sums.bytes_sent, self._sums.exposed_s, buckets=self._sums.traffic("gradients"))

    def close(self) -> None:
        self.synchronize()
        del self._sums


def make(kit: ExchangeSettings) -> Delayed:
    return Delayed(
        kit.transport, kit.ops, clip_norm=kit.config.clip_norm, compression=compression_of(kit.config), **settings(kit)
    )
