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

from abc import abstractmethod
from dataclasses import replace

from ringtrain.arrays import Array
from ringtrain.exchange.base import Exchange, ExchangeFacts, Serving
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import PlacementTable
from ringtrain.exchange.model_parallel.part_gather import PartGather
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import Optimizer

IN_FLIGHT = 2  # micro-batches of one rank in front that are under way at once


class MessageServing(Serving):
    """The service of a rank that exchanges messages with ranks before or behind it."""

    def meet(self) -> None:
        """Drain the peers, and begin anew: ranks are together."""


class Pipeline(Exchange):
    """One rank of a pipeline. ``inner``: the facts of the strategy in front.

    table:   layers and ranks, from :meth:`prepare` on
    apart:   whether ranks in front may be in different iterations
    serving: set by the stage of a rank behind
    """

    serving: MessageServing

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: ExchangeFacts):
        self.settings, self.mail = settings, mail
        size, config = settings.transport.size, settings.config
        front = size - config.fc_ranks
        self.apart = inner.dynamic_batches or inner.max_iteration_lag > 0
        self.facts = ExchangeFacts(
            name=inner.name,
            header=self._header(front, inner.header),
            roles=replace(inner.roles, parts=tuple(range(front, size))),
            exact=inner.exact,
            state_is_local=False,
            max_iteration_lag=inner.max_iteration_lag,
            dynamic_batches=inner.dynamic_batches,
            all_reduces=inner.all_reduces,
        )
        self._current = False  # whether the weights of all parts are current on the ranks in front

    def _header(self, front: int, inner: str) -> str:
        when, fc = (
            "after as many examples as a batch has" if self.apart else "once an iteration",
            self.settings.config.fc_ranks,
        )
        words = f"with fc pipeline of {front} + {fc} ranks, {IN_FLIGHT} in flight, updated {when}"
        return f"{inner} {words}".strip()

    def prepare(self, graph: Graph) -> Graph:
        transport = self.settings.transport
        self.table = PlacementTable(graph, transport.size, self.settings.config.fc_ranks, transport.rank)
        return graph

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        self._gather = PartGather(self.settings, self.table, arena)
        notes = self.table.describe(arena.grads.dtype.itemsize)
        inner_notes, state_bytes = self._bind(arena, optimizer)
        self.facts = replace(self.facts, notes=[*notes, *inner_notes], state_bytes=state_bytes)

    @abstractmethod
    def _bind(self, arena: Arena, optimizer: Optimizer) -> tuple[list[str], int | None]:
        """Bind this rank's part; return further notes, and the bytes of its optimizer's state."""

    @abstractmethod
    def _weights(self) -> tuple[Array | None, Array | None]:
        """Return the weights over this rank's part, or else over the whole network; the other is None."""

    def _synchronize_front(self) -> None:
        """Make the weights of the layers in front current."""

    def finish(self, iteration: int, lr: float) -> None:
        self._current = False

    def synchronize(self) -> None:
        self.serving.meet()
        self._synchronize_front()
        # Where free ranks take parts of batches, some may have had none: they do not know whether others have updated.
        if not self._current or self.facts.dynamic_batches:
            self._gather.gather(*self._weights())
        self._current = True
