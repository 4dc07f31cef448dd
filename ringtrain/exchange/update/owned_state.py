"""The state of a strategy: it is gathered for a checkpoint, compared between ranks, checked and restored."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ringtrain.exchange.update.owned_update import OwnedArray, OwnedUpdate, check_names


class StatePart(Protocol):
    """State that a strategy keeps besides the optimizer's."""

    required_names: Collection[str]  # arrays that each state of this strategy has
    optional_names: Collection[str]  # arrays that a state may have

    def state(self) -> dict: ...

    def restore(self, state: dict) -> None: ...


class OwnedState:
    """The optimizer's state, and the other parts that a strategy keeps.

    update:      the optimizer on this rank
    synchronize: completes every update; called before the state is gathered
    gather:      returns the optimizer's whole state, on rank 0 at least; None: this rank has it already
    replicated:  whether every rank holds the same state now
    parts:       state besides the optimizer's
    arrays:      arrays of the parts, for the comparison of ranks
    """

    def __init__(
        self,
        update: OwnedUpdate,
        synchronize: Callable[[], None],
        gather: Callable[[], dict] | None = None,
        replicated: Callable[[], bool] = lambda: False,
        parts: Sequence[StatePart] = (),
        arrays: Callable[[], list[OwnedArray]] = list,
    ):
        self._update, self._synchronize, self._gather = update, synchronize, gather or update.state
        self._replicated, self._parts, self._arrays = replicated, parts, arrays

    def state(self) -> dict:
        """The state, unsharded and independent of the number of ranks: name → flat array over the arena, plus scalars;
        whole on rank 0 at least. Collective, unless ``state_is_local``."""
        self._synchronize()
        state = self._gather()
        for part in self._parts:
            state |= part.state()
        return state

    def arrays(self) -> list[OwnedArray]:
        """The arrays that this rank keeps; call it after ``synchronize``."""
        return [*self._update.arrays(self._replicated()), *self._arrays()]

    def check_names(self, names: Collection[str]) -> None:
        """Raises CheckpointError unless a run can go on from a state of arrays of these names."""
        required = [name for part in self._parts for name in part.required_names]
        optional = [name for part in self._parts for name in part.optional_names]
        check_names(names, (*self._update.slots, *required), optional)

    def restore(self, state: dict) -> None:
        """Take what :meth:`state` returned, at any number of ranks. Raises CheckpointError where the state is another
        optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)
        for part in self._parts:
            part.restore(state)
