"""Fully connected layers on ranks of their own; the other ranks, in front, hold the layers before them.

::

    ranks 0 1 2 3: conv            rank 4: fc6             rank 5: fc7 fc8, loss
        ── examples, labels, activations ──►  ── the same ──►
        ◄── sums of the loss, gradient ─────  ◄──────────────

1.  The ranks in front divide the batch among them, and their parts into micro-batches. Each sends the activations of a
    micro-batch to the first group of fully connected ranks and goes on with the next one, up to ``IN_FLIGHT`` of them
    at once; when a gradient comes back, it runs backward with the tape of that micro-batch.
2.  A fully connected rank takes the messages of all in one order, micro-batch by micro-batch, places in order. The
    ranks of a group divide the columns of their layers, and the examples of a message, as with ``--fc hybrid``.
3.  The layers in front are exchanged by all-reduce, among the ranks that hold them. Gradients of fully connected layers
    never travel: their rank has seen the whole batch, and updates its columns alone.

Fully connected ranks add the gradients of all messages of an iteration and update once, at its end, before any forward
of the next one: an iteration equals one of serial SGD, and sums are the same in every run.

A rank has the arena of its part alone: those in front hold the whole network, and evaluate and save it, with fully
connected weights that are old until :meth:`Pipeline.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; multi-node Caffe (BVLC/caffe
pull request 3441), 2015.
"""

from dataclasses import replace

import numpy as np

from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, Roles
from ringtrain.exchange.buckets.ownership import schedule_name
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel, GroupRows
from ringtrain.exchange.model_parallel.divided_allreduce import DividedAllReduce
from ringtrain.exchange.model_parallel.hybrid_layers import divided
from ringtrain.exchange.model_parallel.layer_placement import PlacementTable, check_ranks
from ringtrain.exchange.model_parallel.layouts import MicrobatchLayouts
from ringtrain.exchange.model_parallel.part_gather import PartGather, own_part, own_state
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, check_sizes, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import Optimizer
from ringtrain.transport.loopback import Loopback

IN_FLIGHT = 2  # micro-batches of one rank in front that are under way at once


class Pipeline(Exchange):
    """One rank of a pipeline. ``inner``: the facts of the all-reduce in front; ``norm``: adds squares over all ranks,
    for clipping.

    table:   layers and ranks, from :meth:`prepare` on
    part:    this rank's layers, with its columns alone
    layouts: of the ranks that divide these columns; None if this rank has whole layers
    """

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, norm: SumOverRanks, inner: ExchangeFacts):
        self.settings, self.mail, self._norm = settings, mail, norm
        size, fc_ranks = settings.transport.size, settings.config.fc_ranks
        front = size - fc_ranks
        ranks = f"{front} + {fc_ranks} ranks, {IN_FLIGHT} in flight"
        header = f"{inner.header} with fc pipeline of {ranks}, updated once an iteration"
        roles = Roles(trainers=tuple(range(front)), parts=tuple(range(front, size)))
        self.facts = replace(inner, header=header.strip(), roles=roles, state_is_local=False, survives_rank_loss=False)
        self.layouts: MicrobatchLayouts | None = None
        self._current = False  # whether the weights of all parts are current on the ranks in front

    def prepare(self, graph: Graph) -> Graph:
        transport = self.settings.transport
        self.table = PlacementTable(graph, transport.size, self.settings.config.fc_ranks, transport.rank)
        self.part = self.table.part
        return graph

    def _begin_bind(self, arena: Arena) -> list[str]:
        """Prepare the gathering of parts; return the lines of the table."""
        table = self.table
        parts = [(table.spans_of(placement), placement.ranks) for placement in table.placements[1:]]
        self._arena, self._gather = arena, PartGather(self.settings, parts, arena, is_taker=table.index == 0)
        return table.describe(arena.grads.dtype.itemsize)

    def _gather_weights(self) -> None:
        """Bring the weights of all parts to the ranks in front."""
        if not self._current:
            self._gather.gather(self._arena.weights)
        self._current = True


class PipelineFront(DividedAllReduce, Pipeline):
    """Exchanges its layers by all-reduce; ``within``: the settings of that, with the ranks in front alone."""

    def __init__(
        self, settings: ExchangeSettings, mail: ActivationChannel, norm: SumOverRanks, within: ExchangeSettings
    ):
        DividedAllReduce.__init__(self, within)
        Pipeline.__init__(self, settings, mail, norm, self.facts)
        self._add_square_norm = self._add_parts

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        notes = self._begin_bind(arena)
        self.part.bind(arena)
        self._bind_front(arena, optimizer, len(self.part.parameters()), self.mail)
        self.facts = replace(self.facts, notes=[*notes, *self.facts.notes])

    def _gather_slot(self, name: str) -> None:
        self._gather.gather(self._arena.grads)

    def _add_parts(self, squares: float) -> float:
        """Add the square norm of all parts behind to the layers' in front, which every rank there has."""
        return self._norm(0.0 if self.settings.transport.rank else squares)

    def finish(self, iteration: int, lr: float) -> None:
        self._current = False
        super().finish(iteration, lr)

    def synchronize(self) -> None:
        super().synchronize()
        self._gather_weights()


class PipelineBehind(Pipeline):
    """Updates its part by the messages of the ranks in front.

    group: the ranks that divide the columns of this rank's layers
    """

    def prepare(self, graph: Graph) -> Graph:
        super().prepare(graph)
        settings = self.settings
        group = settings.transport.lasting_group(self.table.ranks)
        assert group is not None, "this rank holds its layers"
        self.group = group
        self._within = replace(settings, transport=group, guard=None, share=_row_share, accumulate=1)
        if group.size > 1:
            self.layouts = MicrobatchLayouts(self._within)
            self.part = divided(self.part, 0, self.layouts, None)
        return self.part

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        notes, within = self._begin_bind(arena), self._within
        of_group, everywhere = SumOverRanks(within), everything(arena)
        self._update = OwnedUpdate(
            within.ops, arena, optimizer, arena.grads, everywhere, within.clip_norm, self._norm, add_norms=of_group.add
        )
        self.owned_state = OwnedState(self._update, lambda: None, self._send_state, take=self._take_state)
        self.rehearsed = [self._update]
        collectives = [self.layouts.collectives] if self.layouts is not None else []
        self.reducers = Reducers({}, messages=[self.mail, *collectives])
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)

    def _send_state(self) -> dict:
        """Send this rank's part to the ranks in front, and return the step alone. Collective."""
        for name in sorted(self._update.slots):
            self._gather.gather(self._update.slots[name])
        return {STEP: self._update.step}

    def _take_state(self, state: dict) -> None:
        whole = self.table.spans
        check_sizes(state, whole[-1].stop)
        self._update.take(own_state(self._arena, whole, state))

    def grad_ready(self, span: Span) -> None:
        """Nothing to do: this gradient does not travel."""

    def finish(self, iteration: int, lr: float) -> None:
        self._current = False
        self._update.make(lr)

    def synchronize(self) -> None:
        self._gather_weights()

    def own_part(self, flat: np.ndarray) -> np.ndarray:
        return own_part(self._arena, self.table.spans, flat)


def _row_share(count: int, part: int, parts: int) -> tuple[int, int]:
    return GroupRows(part, parts).cut(count)


def make_pipeline(settings: ExchangeSettings) -> Pipeline:
    """Return the end of this rank: in front, or behind. Raises ConfigError unless ranks are left in front."""
    config, transport = settings.config, settings.transport
    check_ranks(transport.size, config.fc_ranks)
    front = transport.lasting_group(range(transport.size - config.fc_ranks))
    norm = SumOverRanks(settings)
    # The guard numbers the collectives of all ranks, and knows no collectives of some ranks.
    within = replace(settings, transport=front or Loopback(), guard=None, tuning=None)
    within = within.with_options(algorithm=schedule_name(config.algorithm, transport))
    mail = ActivationChannel(transport, settings.ops, config.deadline_s)
    if front is None:
        return PipelineBehind(settings, mail, norm, AllReduce(within).facts)
    return PipelineFront(settings, mail, norm, within)
