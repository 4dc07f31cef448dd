"""Fully connected layers on ranks of their own; the other ranks hold the layers before them. Exact, or not.

::

    ranks 0 1 2 3: conv            rank 4: fc6             rank 5: fc7 fc8, loss
        ── id, examples, labels, activations ──►  ── the same ──►
        ◄───────────── id, gradient of those ────  ◄───────────

1.  The ranks of the convolutions divide the batch among them, and their parts into micro-batches. Each sends the
    activations of a micro-batch to the first fully connected rank and goes on with the next one, up to a given number
    of them in flight; when a gradient comes back, it runs backward with the tape of that micro-batch.
2.  A fully connected rank takes messages as they arrive, forward and backward, each with a tape of its own.
3.  The gradients of the convolutions are summed over the ranks that hold them. Those of fully connected layers never
    travel: their rank has seen the whole batch.

Fully connected ranks add the gradients of all messages of an iteration and update once, at its end, before any forward
of the next one: then an iteration equals one of serial SGD. Messages are taken in one order (micro-batch by
micro-batch, ranks in order), and sums are the same in every run.

``micro-batch`` updates at every message, in the order of arrival: each is a batch of its own, with the learning rate
times its share of the batch. Approximate.

Weights of fully connected layers are old on other ranks until :meth:`Pipeline.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; multi-node Caffe (BVLC/caffe
pull request 3441), 2015.
"""

from collections.abc import Collection
from dataclasses import replace

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.arrays import Array
from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, Roles
from ringtrain.exchange.buckets.reduce_scatter import schedule_name
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.subgroup import Subgroup
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import describe, place_layers
from ringtrain.exchange.model_parallel.part_update import PartUpdate
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP
from ringtrain.exchange.update.ranges import Piece
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.nn import subgraphs
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import Optimizer

ACCUMULATE, MICRO_BATCH = "accumulate", "micro-batch"


class IterationCount:
    """The iterations of a run: the step of a state, since ``micro-batch`` counts updates by message."""

    required_names: Collection[str] = ()
    optional_names: Collection[str] = ()

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
        self._settings = settings
        self.mail = ActivationChannel(transport, settings.ops, config.deadline_s)
        front = transport.size - config.fc_ranks
        self.in_flight, self.each = config.fc_in_flight, config.fc_update == MICRO_BATCH
        when = texts.AT_EACH_MESSAGE if self.each else texts.ONCE_AN_ITERATION
        self.facts = ExchangeFacts(
            name="allreduce",
            header=texts.WITH_PIPELINE(others=front, fc=config.fc_ranks, in_flight=self.in_flight, when=when),
            roles=Roles(tuple(range(front)), tuple(range(front, transport.size))),
            exact=not self.each and config.wire == NONE,
            state_is_local=False,
        )
        self._iterations = IterationCount()
        self._current = False  # whether the weights of all parts are current here

    def prepare(self, graph: Graph) -> Graph:
        self.routes = place_layers(graph, self._settings.transport.size, self._settings.config.fc_ranks)
        self._graph = graph
        return graph

    @property
    def own(self) -> int:
        """The place of this rank's part among the routes: 0 is that of the convolutions."""
        return next(i for i, route in enumerate(self.routes) if self._settings.transport.rank in route.ranks)

    @property
    def place(self) -> int:
        """The place of this rank among those that hold its part."""
        return self.routes[self.own].ranks.index(self._settings.transport.rank)

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, own = self._settings, self.own
        parts = [subgraphs.subgraph(self._graph, route.start, route.stop) for route in self.routes]
        self._arena, self._slices, self.part = arena, [_slice(arena, part) for part in parts], parts[own]
        self.part.bind(arena)
        sum_over_ranks = SumOverRanks(settings)
        front = Subgroup(settings.transport, self.routes[0].ranks) if own == 0 else None
        # The guard numbers the collectives of all ranks; those of the front ranks are not among them.
        algorithm = schedule_name(settings.config.algorithm, settings.transport)
        self._update = PartUpdate(
            replace(settings, tuning=None, guard=None).with_options(algorithm=algorithm),
            arena,
            optimizer,
            self._slices[own],
            lambda squares: sum_over_ranks(0.0 if self.place else squares),  # of each part once
            front,
        )
        update, sums = self._update.owned, self._update.sums
        self.owned_state = OwnedState(update, lambda: None, gather=self._gather, parts=[self._iterations])
        self.reducers = Reducers({"gradients": sums} if sums else {}, messages=[self.mail])
        notes = [describe(route, self._graph, arena.grads.dtype.itemsize) for route in self.routes]
        notes += self._update.summing.notes if self._update.summing else []
        self.facts = replace(self.facts, notes=notes, state_bytes=update.nbytes)

    def rehearse(self) -> None:
        self._update.rehearse()

    def grad_ready(self, span: Span) -> None:
        self._update.grad_ready(span)

    def learn(self, lr: float, share: float, number: int, messages: int) -> None:
        """Update by the gradient of message ``number`` of ``messages``: a batch of its own, this share of the whole."""
        self._update.apply_micro_batch(lr, share, self._iterations.step * messages + number + 1)

    def finish(self, iteration: int, lr: float) -> None:
        self._iterations.step += 1
        self._current = False
        if not self.each or self.own == 0:  # other ranks have updated at each message
            self._update.apply(lr, self._iterations.step)

    def synchronize(self) -> None:
        if not self._current:
            self._spread(self._arena.weights)
        self._current = True

    def _spread(self, flat: Array) -> None:
        """Give every rank each part of a flat array over the arena, from a rank that holds it."""
        transport, guard = self._settings.transport, self._settings.guard
        together = transport if guard is None else GuardedTransport(transport, guard)
        self._settings.ops.synchronize()
        for route, (start, stop) in zip(self.routes, self._slices, strict=True):
            together.broadcast(flat[start:stop], route.ranks[0])

    def _gather(self) -> dict:
        """Return the whole state, gathered in the memory of the gradients, which is free between iterations."""
        flat = self._arena.grads
        return self._update.owned.gathered(flat, lambda: self._spread(flat))


def _slice(arena: Arena, part: Graph) -> Piece:
    """Return the elements of the arena that hold a part's parameters."""
    names = {name for name, _ in part.parameters()}
    spans = [span for span in arena.spans if span.name in names]
    return spans[0].start, spans[-1].stop
