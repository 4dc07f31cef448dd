"""A rank behind the front of a pipeline: it holds fully connected layers, or some of their columns, alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringtrain.exchange.base import ExchangeFacts, OwnedState, all_train
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel, GroupRows
from ringtrain.exchange.model_parallel.hybrid_layers import divided
from ringtrain.exchange.model_parallel.microbatches import MicrobatchLayouts
from ringtrain.exchange.model_parallel.part_gather import own_part
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, check_sizes, everything
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import Optimizer


class PipelineBehind(Pipeline):
    """Updates its part by the messages of the ranks in front. ``norm``: adds squares over all ranks, for clipping.

    group:   the ranks that divide the columns of this rank's layers
    part:    this rank's layers, with its columns alone
    layouts: of the group; None if this rank has whole layers
    left_out: whether this iteration ends without an update: no message has come in it
    """

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: ExchangeFacts, norm: SumOverRanks):
        super().__init__(settings, mail, inner)
        self._norm, self.left_out = norm, False
        self.layouts: MicrobatchLayouts | None = None

    def prepare(self, graph: Graph) -> Graph:
        super().prepare(graph)
        settings, self.part = self.settings, self.table.part
        group = settings.transport.lasting_group(self.table.ranks)
        assert group is not None, "this rank holds its layers"
        self.group = group
        self._within = replace(settings, transport=group, guard=None, share=_row_share, accumulate=1)
        if group.size > 1:
            self.layouts = MicrobatchLayouts(self._within, all_train(group.size))
            self.part = divided(self.part, 0, self.layouts, None)
        return self.part

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        notes, within = self._begin_bind(arena), self._within
        of_group, everywhere = SumOverRanks(within), everything(arena)
        total = of_group if self.apart else self._norm
        self._update = OwnedUpdate(
            within.ops, arena, optimizer, arena.grads, everywhere, within.clip_norm, total, add_norms=of_group.add
        )
        self.owned_state = PartState(self._update, self._send_state, self.own_part, self.table.spans[-1].stop)
        self.rehearsed = [self._update]
        collectives = [self.layouts.collectives] if self.layouts is not None else []
        self.reducers = Reducers({}, messages=[self.mail, *collectives])
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)

    def _send_state(self) -> dict:
        """Send this rank's part to the ranks in front, and return the step alone. Collective."""
        for name in sorted(self._update.slots):
            self._gather.gather(self._update.slots[name])
        return {STEP: self._update.step}

    def grad_ready(self, span: Span) -> None:
        """Nothing to do: this gradient does not travel."""

    def finish(self, iteration: int, lr: float) -> None:
        super().finish(iteration, lr)
        if self.left_out:
            self._update.count()
        else:
            self._update.begin(lr)
            self._update.apply()
        self.left_out = False

    def synchronize(self) -> None:
        self.serving.meet()
        self._gather_weights()

    def own_part(self, flat: np.ndarray) -> np.ndarray:
        return own_part(self._arena, self.table.spans, flat)


def _row_share(count: int, part: int, parts: int) -> tuple[int, int]:
    return GroupRows(part, parts).cut(count)


class PartState(OwnedState):
    """The state on a rank behind. ``cut``: takes this rank's part of an array over the whole network, which has
    ``count`` elements"""

    def __init__(
        self,
        update: OwnedUpdate,
        send: Callable[[], dict],
        cut: Callable[[np.ndarray], np.ndarray],
        count: int,
    ):
        super().__init__(update, lambda: None, send)
        self._cut, self._count = cut, count

    def restore(self, state: dict) -> None:
        """Raises CheckpointError if the state is of another optimizer or of another arena."""
        self.check_names(state)
        check_sizes(state, self._count)
        self._update.take({name: value if name == STEP else self._cut(value) for name, value in state.items()})
