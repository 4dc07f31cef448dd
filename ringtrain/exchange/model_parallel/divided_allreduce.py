"""All-reduce of a network whose last layers are divided among ranks, or held by some: of the layers before them."""

from abc import abstractmethod

import numpy as np

from ringtrain.exchange.base import OwnedState
from ringtrain.exchange.buckets.reducer import Reducers, TrafficSource
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, check_sizes
from ringtrain.memory.arena import Arena, beginning
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class DividedAllReduce(AllReduce):
    """Sums the gradients of the layers before the divided ones. The state is as if no layer were divided."""

    def _bind_front(self, arena: Arena, optimizer: Optimizer, count: int, messages: TrafficSource) -> None:
        """Bind the all-reduce to the first ``count`` spans of the arena. ``messages``: their bytes are counted too."""
        front = beginning(arena, count)
        super().bind(front, type(optimizer)(front.spans, optimizer.hyper))
        self._arena, self._cut = arena, front.count
        # Divided layers are compared by the weights, which are gathered.
        self.owned_state = OwnedState(
            self._update, super().synchronize, self._whole_state, lambda: True, take=self._take_state
        )
        self.reducers = Reducers({"gradients": self._gradients}, messages=[messages])

    @abstractmethod
    def _gather_slot(self, name: str) -> None:
        """Bring a slot of the divided layers to their place in the memory of the gradients. Collective."""

    def _whole_state(self) -> dict:
        state, grads = self._update.state(), self._arena.grads
        for name in sorted(self._update.slots):
            self._gather_slot(name)
            state[name] = np.concatenate([state[name], self._settings.ops.to_host(grads[self._cut :])])
        return state

    def _take_state(self, state: dict) -> None:
        check_sizes(state, self._arena.count)
        self._update.take({name: value if name == STEP else value[: self._cut] for name, value in state.items()})

    def recordable_update(self) -> OwnedUpdate | None:
        return None

    def before_read(self, span: Span) -> None:
        if span.start < self._cut:
            super().before_read(span)

    def grad_ready(self, span: Span) -> None:
        if span.start < self._cut:
            super().grad_ready(span)
