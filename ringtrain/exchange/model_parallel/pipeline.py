"""Fully connected layers on ranks of their own; the other ranks hold the layers before them. Exact, or not.

::

    ranks 0 1 2 3: conv            rank 4: fc6             rank 5: fc7 fc8, loss
        ── id, examples, labels, activations ──►  ── the same ──►
        ◄───────────── id, gradient of those ────  ◄───────────

1.  The ranks of the convolutions divide the batch among them, and their parts into micro-batches. Each sends what its
    layers make of a micro-batch to the first fully connected rank and goes on with the next one, up to a given number
    of them in flight; when a gradient comes back, it runs backward with the tape of that micro-batch.
2.  A fully connected rank takes messages as they come in, forward and backward, each with a tape of its own.
3.  Convolutions' gradients are summed over the ranks that have them. Those of fully connected layers never travel:
    their rank has seen the whole batch.

Fully connected ranks add the gradients of all messages of an iteration and update once, at its end, before any forward
of the next one: then an iteration equals one of serial SGD. Messages are taken in one order (micro-batch by
micro-batch, ranks in order), and sums are the same in every run.

``each`` updates at every message instead, whoever comes first: each is a batch of its own, with the learning rate times
its share of the batch. Approximate.

Weights of fully connected layers are old on other ranks until :meth:`Pipeline.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; multi-node Caffe (BVLC/caffe
pull request 3441), 2015.
"""

from collections.abc import Callable

import numpy as np

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, Roles
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reduce_scatter import schedule_name
from ringtrain.exchange.buckets.subgroup import Subgroup
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.model_parallel import layer_placement
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement
from ringtrain.exchange.settings import ExchangeSettings, settings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, check_names
from ringtrain.exchange.update.ranges import Piece, common
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.nn import segments

ACCUMULATE, EACH = "accumulate", "each"


class Pipeline(Exchange):
    """fc_ranks:  ranks that hold fully connected layers, the last ones
    in_flight: micro-batches of one rank that may be on their way
    update:    accumulate or each
    clip_norm: the largest global norm of the gradient; None for no limit
    guard:     watches what brings weights and state back to all ranks; None for none
    how:       arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`
    """

    name = "allreduce"
    state_is_local = False

    def __init__(
        self,
        transport,
        ops,
        fc_ranks: int = 1,
        in_flight: int = 2,
        update: str = ACCUMULATE,
        clip_norm: float | None = None,
        guard=None,
        deadline_s: float = 300.0,
        algorithm: str = AUTO,
        **how,
    ):
        self._transport, self._ops, self._clip_norm = transport, ops, clip_norm
        self._together = transport if guard is None else GuardedTransport(transport, guard)
        self.fc_ranks, self.in_flight, self.each = fc_ranks, in_flight, update == EACH
        self.mail = ActivationChannel(transport, ops, deadline_s)
        self._how = {**how, "deadline_s": deadline_s, "algorithm": schedule_name(algorithm, transport)}
        self.terms = texts.WITH_PIPELINE(
            others=transport.size - fc_ranks,
            fc=fc_ranks,
            in_flight=in_flight,
            when=texts.AT_EACH_MESSAGE if self.each else texts.ONCE_AN_ITERATION,
        )
        self._squares = np.zeros(1)
        self._step = 0  # iterations
        self._settled = False

    # ── who holds what ────────────────────────────────────────────────────────────────────────────────────────
    def roles(self, size: int) -> Roles:
        front = size - self.fc_ranks
        return Roles(tuple(range(front)), tuple(range(front, size)))

    def prepare(self, graph):
        self.routes = layer_placement.make_routing(graph, self._transport.size, self.fc_ranks)
        layer_placement.check(self.routes, graph, self._transport.size)
        self._graph = graph
        return graph

    @property
    def own(self) -> int:
        """The place of this rank's part among the routes: 0 is that of the convolutions."""
        return next(i for i, route in enumerate(self.routes) if self._transport.rank in route.ranks)

    @property
    def place(self) -> int:
        """The place of this rank among those that hold its part."""
        return self.routes[self.own].ranks.index(self._transport.rank)

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self.parts = [segments.part(self._graph, route.start, route.stop) for route in self.routes]
        self._pieces = [_piece(arena, route, part) for route, part in zip(self.routes, self.parts, strict=True)]
        self.part, (self._start, self._stop) = self.parts[self.own], self._pieces[self.own]
        self.part.bind(arena)
        held = [(self._start, self._stop)]
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, held)
        self.state_bytes = self._update.nbytes
        self._trained = common(trained_runs(arena.spans), held)
        self.sums, summing = None, None
        self.exact = not self.each and self._how.get("wire", "none") == "none"
        if self.own == 0:
            summing = BucketedAllReduce(Subgroup(self._transport, self.routes[0].ranks), self._ops, **self._how)
            self.sums = summing.bind(self._spans(), arena.grads)
        self._summing = summing
        self.notes = layer_placement.tell(self.routes, self._graph, arena.grads.dtype.itemsize)
        self.notes += summing.notes if summing else []

    def _spans(self) -> list:
        return [span for span in self._arena.spans if self._start <= span.start and span.stop <= self._stop]

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        if self._summing:
            self._summing.rehearse(nothing)
        rehearse_clip(self._ops, nothing)
        self._update.rehearse()

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def grad_ready(self, span) -> None:
        if self.sums is not None and span.stop <= self._stop:
            self.sums.grad_ready(span)

    def learn(self, lr: float, share: float, number: int, messages: int) -> None:
        """Update by the gradient of message ``number`` of so many: a batch of its own, of this share of the whole."""
        self._ops.scale(self._arena.grads[self._start : self._stop], 1 / share)
        self._update.step = self._step * messages + number + 1
        self._update.apply(lr * share, self._start, self._stop)

    def finish(self, iteration: int, lr: float) -> None:
        self._step += 1
        self._settled = False
        if self.each and self.sums is None:
            return  # learnt message by message
        self._update.step = self._step
        if self._clip_norm is None and self.sums is not None:
            for bucket in self.sums.arrivals():
                self._update.apply(lr, bucket.start, bucket.stop)
            return
        if self.sums is not None:
            self.sums.wait_all()
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm, self._over_parts)
        self._update.apply(lr, self._start, self._stop)

    def _over_parts(self, own: float) -> float:
        """The sum over all parts: of those that are on several ranks, the first rank's."""
        self._squares[0] = own if self._transport.rank == self.routes[self.own].ranks[0] else 0.0
        self._transport.native_allreduce_start(self._squares).wait(self._how["deadline_s"])
        return float(self._squares[0])

    # ── everything everywhere ─────────────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        if not self._settled:
            self._spread(self._arena.weights)
        self._settled = True

    def _spread(self, flat) -> None:
        """Give every rank each part of a flat array over the arena, from who holds it."""
        self._ops.synchronize()
        for route, (start, stop) in zip(self.routes, self._pieces, strict=True):
            self._together.broadcast(flat[start:stop], route.ranks[0])

    def state(self) -> dict:
        """Collective, in the memory of the gradients, which are not needed between iterations."""
        flat = self._arena.grads
        return {**self._update.gathered(flat, lambda: self._spread(flat)), STEP: self._step}

    def kept(self):
        return self._update.kept(alike=False)

    def check_names(self, names) -> None:
        check_names(names, self._update.slots)

    def restore(self, state: dict) -> None:
        """What an all-reduce kept will do. Raises CheckpointError where the state is another optimizer's, or of another
        arena."""
        self.check_names(state)
        self._update.take(state)
        self._step = self._update.step

    def reducers(self) -> dict:
        return {"gradients": self.sums} if self.sums is not None else {}

    def traffic(self) -> Traffic:
        """Of training; not of bringing weights back."""
        sums = self.sums
        if sums is None:
            return Traffic(self.mail.bytes_sent, self.mail.exposed_s)
        sent, exposed_s = self.mail.bytes_sent + sums.bytes_sent, self.mail.exposed_s + sums.exposed_s
        return Traffic(sent, exposed_s, buckets=sums.traffic("gradients"))

    def close(self) -> None:
        self.sums = None


def _piece(arena, route: LayerPlacement, part) -> Piece:
    """The elements of the arena that a part's parameters lie in."""
    names = {name for name, _ in part.parameters()}
    spans = [span for span in arena.spans if span.name in names]
    return spans[0].start, spans[-1].stop


def make(kit: ExchangeSettings, inner: Callable[[ExchangeSettings], Exchange]) -> Pipeline:
    """``inner``: the strategy of the other layers. It must be all-reduce, and is run here, among the ranks in front."""
    config = kit.config
    how = settings(kit)
    return Pipeline(
        kit.transport,
        kit.ops,
        fc_ranks=config.fc_ranks,
        in_flight=config.fc_in_flight,
        update=config.fc_update,
        clip_norm=config.clip_norm,
        **{key: value for key, value in how.items() if key != "tuning"},
    )
