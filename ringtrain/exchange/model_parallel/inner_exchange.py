"""An exchange of a network whose last layers are divided among ranks, or held by some; another one exchanges the layers
before them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import Exchange, State
from ringtrain.exchange.buckets.reducer import TrafficSource
from ringtrain.exchange.update.owned_update import STEP, OwnedArray, check_sizes
from ringtrain.memory.arena import Arena, beginning
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.optim.optimizers import Optimizer


class WithInnerExchange(Exchange):
    """Hands the calls about layers before the divided ones on to ``_inner``."""

    _inner: Exchange

    def _bind_inner(
        self,
        ops: Ops,
        arena: Arena,
        optimizer: Optimizer,
        count: int,
        messages: TrafficSource,
        gather: Callable[[str, Array], None],
        take: Callable[[dict], None] = lambda state: None,
    ) -> None:
        """Bind the inner exchange to the first ``count`` spans of the arena. ``messages``: their bytes are counted too;
        ``gather``, ``take``: as of :class:`DividedState`."""
        inner, front = self._inner, beginning(arena, count)
        inner.bind(front, type(optimizer)(front.spans, optimizer.hyper))
        self._arena, self._cut = arena, front.count
        self.owned_state = DividedState(ops, inner.owned_state, arena, front.count, optimizer.slots, gather, take)
        self.reducers = inner.reducers.with_messages(messages)
        self.ready_points, self.wait_points = inner.ready_points, inner.wait_points

    def denominator(self, local: float, total: float) -> float:
        return self._inner.denominator(local, total)

    def before_read(self, span: Span) -> None:
        if span.start < self._cut:
            self._inner.before_read(span)

    def grad_ready(self, span: Span) -> None:
        if span.start < self._cut:
            self._inner.grad_ready(span)


@dataclass
class DividedState(State):
    """The optimizer's state: the inner exchange's, and that of the layers after it, as if no layer were divided."""

    ops: Ops
    inner: State
    arena: Arena
    cut: int  # the first element of the divided layers in the arena
    slots: Collection[str]  # names of the optimizer's arrays
    # gather(name, flat): brings a slot of these layers to their place in a flat array over the arena. Collective
    gather: Callable[[str, Array], None]
    take: Callable[[dict], None]  # takes this rank's part of these layers from a whole state in host arrays

    def state(self) -> dict:
        """Return the state, whole where the inner exchange's is. Collective. The divided layers are gathered in the
        memory of their gradients, which is free."""
        state = self.inner.state()
        for name in sorted(self.slots):
            self.gather(name, self.arena.grads)
            if name in state:
                state[name] = np.concatenate([state[name], self.ops.to_host(self.arena.grads[self.cut :])])
        return state

    def arrays(self) -> list[OwnedArray]:
        """Return the arrays of the inner exchange. Divided layers are compared by the weights, which are gathered."""
        return self.inner.arrays()

    def check_names(self, names: Collection[str]) -> None:
        self.inner.check_names(names)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError if the state is of another optimizer or of another arena."""
        self.check_names(state)
        check_sizes(state, self.arena.count)
        self.inner.restore({name: value if name == STEP else value[: self.cut] for name, value in state.items()})
        self.take(state)
