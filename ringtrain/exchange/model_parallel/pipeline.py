"""Fully connected layers on ranks of their own; the other ranks, in front, hold the layers before them.

::

    ranks 0 1 2 3: conv            rank 4: fc6             rank 5: fc7 fc8, loss
        ── header, examples, labels, activations ──►  ── the same ──►
        ◄───────────── report, gradient of those ────  ◄───────────

1.  The ranks in front divide the batch among them, and their parts into micro-batches. Each sends the activations of a
    micro-batch to the first group of fully connected ranks and goes on with the next one, up to ``IN_FLIGHT`` of them
    at once; when a gradient comes back, it runs backward with the tape of that micro-batch.
2.  A fully connected rank takes messages as they arrive, forward and backward, each with a tape of its own. The ranks
    of a group divide the columns of their layers, and the examples of a message, as with ``--fc hybrid``.
3.  The layers in front are exchanged by any ``--sync`` that suits, among the ranks that hold them. Gradients of fully
    connected layers never travel: their rank has seen the whole batch, and updates its columns alone.

Fully connected ranks add the gradients of all messages of an iteration and update once, at its end, before any forward
of the next one: then an iteration equals one of serial SGD, if it does so with the strategy in front. Messages are
taken in one order (micro-batch by micro-batch, places in order), and sums are the same in every run.

Approximate are strategies whose ranks may be in different iterations. Then messages are taken in the order of arrival,
and the fully connected ranks update when they have seen as many examples as a batch has.

A rank has the arena of its part alone: those in front hold the whole network, and evaluate and save it, with fully
connected weights that are old until :meth:`Pipeline.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; multi-node Caffe (BVLC/caffe
pull request 3441), 2015.
"""

from dataclasses import replace

from ringtrain.exchange.base import Exchange, ExchangeFacts, Serving
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import PlacementTable
from ringtrain.exchange.model_parallel.part_gather import PartGather
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena
from ringtrain.nn.graph import Graph

IN_FLIGHT = 2  # micro-batches of one rank in front that are under way at once


class MessageServing(Serving):
    """The service of a rank that exchanges messages with ranks before or behind it. ``drained``: whether it has ended,
    and no meeting or message has followed."""

    drained = False

    def drain_peers(self) -> None:
        if not self.drained:
            self.end()
        self.drained = True

    def end(self) -> None:
        """Say goodbye, or wait for the goodbyes of others."""

    def meet(self) -> None:
        """Drain the peers, and begin anew: ranks are together."""
        self.drain_peers()
        self.drained = False


class Pipeline(Exchange):
    """One rank of a pipeline. ``inner``: the facts of the strategy in front.

    table:   layers and ranks, from :meth:`prepare` on
    apart:   whether ranks in front may be in different iterations
    serving: set by the stage of a rank behind
    """

    serving: MessageServing

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: ExchangeFacts):
        self.settings, self.mail = settings, mail
        size, fc_ranks = settings.transport.size, settings.config.fc_ranks
        front = size - fc_ranks
        self.apart = inner.dynamic_batches or inner.max_iteration_lag > 0
        when = "after as many examples as a batch has" if self.apart else "once an iteration"
        header = f"{inner.header} with fc pipeline of {front} + {fc_ranks} ranks, {IN_FLIGHT} in flight, updated {when}"
        roles = replace(inner.roles, parts=tuple(range(front, size)))
        self.facts = replace(inner, header=header.strip(), roles=roles, state_is_local=False, survives_rank_loss=False)
        self._current = False  # whether the weights of all parts are current on the ranks in front

    def prepare(self, graph: Graph) -> Graph:
        transport = self.settings.transport
        self.table = PlacementTable(graph, transport.size, self.settings.config.fc_ranks, transport.rank)
        return graph

    def _begin_bind(self, arena: Arena) -> list[str]:
        """Prepare the gathering of parts; return the lines of the table."""
        self._arena, self._gather = arena, PartGather(self.settings, self.table, arena)
        return self.table.describe(arena.grads.dtype.itemsize)

    def finish(self, iteration: int, lr: float) -> None:
        self._current = False

    def _gather_weights(self) -> None:
        """Bring the weights of all parts to the ranks in front."""
        # Where free ranks take parts of batches, some may have had none: they do not know whether others have updated.
        if not self._current or self.facts.dynamic_batches:
            self._gather.gather(self._arena.weights)
        self._current = True
