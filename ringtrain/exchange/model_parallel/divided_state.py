"""The optimizer's state of a network whose last layers are shared by ranks, or held by some."""

from collections.abc import Callable, Collection

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import State
from ringtrain.exchange.update.owned_update import STEP, OwnedArray, check_sizes
from ringtrain.nn.arena import Arena
from ringtrain.ops.base import Ops


class DividedState(State):
    """The state of the inner exchange, and of the layers after it, as if no layer were divided.

    cut:    the first element of the divided layers in the arena
    slots:  names of the optimizer's arrays
    gather: gather(name, flat): brings a slot of these layers to their place in a flat array over the arena. Collective
    take:   takes this rank's part of these layers from a whole state in host arrays
    """

    def __init__(
        self,
        ops: Ops,
        inner: State,
        arena: Arena,
        cut: int,
        slots: Collection[str],
        gather: Callable[[str, Array], None],
        take: Callable[[dict], None] = lambda state: None,
    ):
        self._ops, self._inner, self._arena, self._cut = ops, inner, arena, cut
        self._slots, self._gather, self._take = sorted(slots), gather, take

    def state(self) -> dict:
        """Return the state, whole where the inner exchange's is. Collective. The divided layers are gathered in the
        memory of their gradients, which is free."""
        state = self._inner.state()
        for name in self._slots:
            self._gather(name, self._arena.grads)
            if name in state:
                state[name] = np.concatenate([state[name], self._ops.to_host(self._arena.grads[self._cut :])])
        return state

    def arrays(self) -> list[OwnedArray]:
        """Return the arrays of the inner exchange. Divided layers are compared by the weights, which are gathered."""
        return self._inner.arrays()

    def check_names(self, names: Collection[str]) -> None:
        self._inner.check_names(names)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError if the state is of another optimizer or of another arena."""
        self.check_names(state)
        check_sizes(state, self._arena.count)
        self._inner.restore({name: value if name == STEP else value[: self._cut] for name, value in state.items()})
        self._take(state)
