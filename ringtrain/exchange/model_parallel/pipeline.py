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

``micro-batch`` updates at every message, in the order of arrival: each is a batch of its own, with the learning rate
times its share of the batch. Approximate.

Weights of fully connected layers are old on other ranks until :meth:`Pipeline.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; multi-node Caffe (BVLC/caffe
pull request 3441), 2015.
"""

from dataclasses import replace

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, ExchangeFacts, Roles
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reduce_scatter import schedule_name
from ringtrain.exchange.buckets.reducers import Reducers
from ringtrain.exchange.buckets.subgroup import Subgroup
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel import layer_placement
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate
from ringtrain.exchange.update.ranges import Piece, common
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.nn import subgraphs

ACCUMULATE, MICRO_BATCH = "accumulate", "micro-batch"


class IterationCount:
    """The iterations of a run: the step of a state, since updates are counted by message with ``micro-batch``."""

    required_names, optional_names = (), ()

    def __init__(self):
        self.step = 0

    def state(self) -> dict:
        return {STEP: self.step}

    def restore(self, state: dict) -> None:
        self.step = int(state[STEP])


class Pipeline(Exchange):
    """Runs the fully connected layers on ranks of their own, and sums the gradients of the other layers by all-reduce
    among the other ranks."""

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._transport, self._ops, self._clip_norm = transport, settings.ops, config.clip_norm
        self._together = transport if settings.guard is None else GuardedTransport(transport, settings.guard)
        self.fc_ranks, self.in_flight, self.each = config.fc_ranks, config.fc_in_flight, config.fc_update == MICRO_BATCH
        self.mail = ActivationChannel(transport, settings.ops, config.deadline_s)
        algorithm = schedule_name(config.algorithm, transport)
        # The guard numbers the collectives of all ranks; those of the ranks in front are not among them.
        self._settings = replace(settings, tuning=None, guard=None).with_options(algorithm=algorithm)
        front = transport.size - self.fc_ranks
        when = texts.AT_EACH_MESSAGE if self.each else texts.ONCE_AN_ITERATION
        self.facts = ExchangeFacts(
            name="allreduce",
            header=texts.WITH_PIPELINE(others=front, fc=self.fc_ranks, in_flight=self.in_flight, when=when),
            roles=Roles(tuple(range(front)), tuple(range(front, transport.size))),
            exact=not self.each and config.wire == NONE,
            state_is_local=False,
        )
        self._sum_over_ranks = SumOverRanks(settings)
        self._iterations = IterationCount()
        self._settled = False

    # ── who holds what ────────────────────────────────────────────────────────────────────────────────────────
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
        self.parts = [subgraphs.subgraph(self._graph, route.start, route.stop) for route in self.routes]
        self._pieces = [_piece(arena, route, part) for route, part in zip(self.routes, self.parts, strict=True)]
        self.part, (self._start, self._stop) = self.parts[self.own], self._pieces[self.own]
        self.part.bind(arena)
        held = [(self._start, self._stop)]
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, held)
        self.owned_state = OwnedState(self._update, _nothing, gather=self._gather, parts=[self._iterations])
        self._trained = common(trained_runs(arena.spans), held)
        self.sums, summing = None, None
        if self.own == 0:
            front = Subgroup(self._transport, self.routes[0].ranks)
            summing = BucketedAllReduce(replace(self._settings, transport=front))
            self.sums = summing.bind(self._spans(), arena.grads)
        self._summing = summing
        self.reducers = Reducers({"gradients": self.sums} if self.sums else {}, messages=[self.mail])
        notes = layer_placement.tell(self.routes, self._graph, arena.grads.dtype.itemsize)
        notes += summing.notes if summing else []
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)

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
        self._update.step = self._iterations.step * messages + number + 1
        self._update.apply(lr * share, self._start, self._stop)

    def finish(self, iteration: int, lr: float) -> None:
        self._iterations.step += 1
        self._settled = False
        if self.each and self.sums is None:
            return  # learnt message by message
        self._update.step = self._iterations.step
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
        return self._sum_over_ranks(own if self._transport.rank == self.routes[self.own].ranks[0] else 0.0)

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

    def _gather(self) -> dict:
        """The whole state, in the memory of the gradients, which are not needed between iterations."""
        flat = self._arena.grads
        return self._update.gathered(flat, lambda: self._spread(flat))


def _nothing() -> None:
    pass


def _piece(arena, route: LayerPlacement, part) -> Piece:
    """The elements of the arena that a part's parameters lie in."""
    names = {name for name, _ in part.parameters()}
    spans = [span for span in arena.spans if span.name in names]
    return spans[0].start, spans[-1].stop
