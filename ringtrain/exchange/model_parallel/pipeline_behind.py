"""A rank behind the front of a pipeline: it holds fully connected layers, or some of their columns, alone."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import ExchangeFacts, State, all_train
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel, GroupRows
from ringtrain.exchange.model_parallel.hybrid_layers import divided
from ringtrain.exchange.model_parallel.microbatches import MicrobatchLayouts
from ringtrain.exchange.model_parallel.part_gather import PartGather, own_part
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import (
    STEP,
    OwnedArray,
    OwnedUpdate,
    check_names,
    check_sizes,
    everything,
)
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import Optimizer


class PipelineBehind(Pipeline):
    """Updates its part by the messages of the ranks in front. ``norm``: adds squares over all ranks, for clipping.

    group:   the ranks that divide the columns of this rank's layers
    part:    this rank's layers, with its columns alone
    layouts: of the group; None if this rank has whole layers
    """

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: ExchangeFacts, norm: SumOverRanks):
        super().__init__(settings, mail, inner)
        self._norm, self._left_out = norm, False
        self.layouts: MicrobatchLayouts | None = None

    def prepare(self, graph: Graph) -> Graph:
        super().prepare(graph)
        settings, self.part = self.settings, self.table.part
        group = settings.transport.lasting_group(self.table.ranks)
        assert group is not None, "this rank holds its layers"
        self.group = group
        within = replace(settings, transport=group, guard=None, share=_row_share, accumulate=1)
        if self.group.size > 1:
            self.layouts = MicrobatchLayouts(within, all_train(self.group.size))
            self.part = divided(self.part, 0, self.layouts, None)
        self._within = within
        return self.part

    def _bind(self, arena: Arena, optimizer: Optimizer) -> tuple[list[str], int | None]:
        self._arena = arena
        of_group = SumOverRanks(self._within)
        self._update = OwnedUpdate(
            self._within.ops,
            arena,
            optimizer,
            arena.grads,
            everything(arena),
            self._within.clip_norm,
            of_group if self.apart else self._norm,
            add_norms=of_group.add,
        )
        self.owned_state = PartState(self._update, self._gather, arena, self.table.spans)
        self.rehearsed = [self._update]
        collectives = [self.layouts.collectives] if self.layouts is not None else []
        self.reducers = Reducers({}, messages=[self.mail, *collectives])
        return [], self._update.nbytes

    def grad_ready(self, span: Span) -> None:
        """Nothing to do: this gradient does not travel."""

    def finish(self, iteration: int, lr: float) -> None:
        super().finish(iteration, lr)
        if self._left_out:
            self._update.count()
        else:
            self._update.begin(lr)
            self._update.apply()
        self._left_out = False

    def leave_out_update(self) -> None:
        """Make no update at the end of this iteration: no message has come in it."""
        self._left_out = True

    def _weights(self) -> tuple[Array | None, Array | None]:
        return self._arena.weights, None

    def own_part(self, flat: np.ndarray) -> np.ndarray:
        return own_part(self._arena, self.table.spans, flat)


def _row_share(count: int, part: int, parts: int) -> tuple[int, int]:
    return GroupRows(part, parts).cut(count)


class PartState(State):
    """The state on a rank behind. ``whole``: the spans of the whole network"""

    def __init__(self, update: OwnedUpdate, gather: PartGather, arena: Arena, whole: Sequence[Span]):
        self._update, self._gather, self._arena, self._whole = update, gather, arena, whole

    def state(self) -> dict:
        """Send this rank's part to the ranks in front, and return the step alone. Collective."""
        for name in sorted(self._update.slots):
            self._gather.gather(self._update.slots[name], None)
        return {STEP: self._update.step}

    def arrays(self) -> list[OwnedArray]:
        return self._update.arrays(False)

    def check_names(self, names: Collection[str]) -> None:
        check_names(names, self._update.slots)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError if the state is of another optimizer or of another arena."""
        self.check_names(state)
        check_sizes(state, self._whole[-1].stop)
        parts = {name: own_part(self._arena, self._whole, flat) for name, flat in state.items() if name != STEP}
        self._update.take({STEP: state[STEP], **parts})
