"""The optimizer on the elements of the arena that this rank updates: all of them, or some. Its state is kept for those
alone."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import CheckpointError
from ringtrain.exchange import texts
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.ranges import Piece, common, cut, elements
from ringtrain.nn.arena import Arena
from ringtrain.ops.base import Ops
from ringtrain.optim.optimizers import Layerwise, Optimizer

STEP = "step"


@dataclass(frozen=True, slots=True)
class OwnedArray:
    """An array of state of this rank: the elements of ``pieces`` of the arena, one piece after the other. ``alike``:
    whether it is over the whole arena, and the same on all ranks now."""

    name: str
    array: Array
    pieces: Sequence[Piece]
    alike: bool


class OwnedUpdate:
    """Clips the gradients of ``pieces``, and updates their weights.

    grads:     flat, over the arena
    pieces:    the elements that this rank updates
    clip_norm: the largest norm of the gradients; None for no limit
    total:     from the sum of squares of this rank's gradients to that of all that are clipped together

    ``slots``: name → the optimizer's state, one piece after the other, ``nbytes`` in all. ``step``: updates begun.
    ``trained``: the pieces without running statistics.
    """

    def __init__(
        self,
        ops: Ops,
        arena: Arena,
        optimizer: Optimizer,
        grads: Array,
        pieces: Sequence[Piece],
        clip_norm: float | None = None,
        total: Callable[[float], float] = float,
    ):
        self._ops, self._arena, self._optimizer, self._grads = ops, arena, optimizer, grads
        self._layerwise = optimizer if isinstance(optimizer, Layerwise) else None
        self._clip_norm, self._total = clip_norm, total
        self.pieces, self.trained = pieces, common(trained_runs(arena.spans), pieces)
        size = elements(pieces)
        self.slots = {name: ops.zeros((size,), grads.dtype) for name in optimizer.slots}
        self.nbytes = len(self.slots) * size * grads.dtype.itemsize
        self.step = 0
        self._squares: np.ndarray | None = None  # of whole parameters, once they are prepared

    @property
    def clips(self) -> bool:
        """Whether the norm of all gradients is needed before an update."""
        return self._clip_norm is not None

    @property
    def layerwise(self) -> bool:
        """Whether the optimizer needs norms of whole parameters: ranks with parts of some call :meth:`prepare` then."""
        return self._layerwise is not None

    def prepare(self, total: Callable) -> None:
        """Compute the norms of whole parameters, if the optimizer needs them. Collective among ranks that have parts of
        them; all gradients are final. ``total`` adds a flat float64 array of sums of squares over these ranks."""
        if self._layerwise is None:
            return
        squares = self._squares = self._layerwise.squares() if self._squares is None else self._squares
        squares.fill(0.0)
        arrays = self._arena.weights, self._grads
        for (start, stop), slots in self._states():
            self._layerwise.prepare(self._ops, *arrays, slots, self._counted(), start, stop, squares, first=start)
        total(squares.reshape(-1))

    def clip(self) -> None:
        """Clip the gradients, if there is a limit. Collective, if ``total`` is."""
        if self._clip_norm is not None:
            clip(self._ops, self._grads, self.trained, self._clip_norm, self._total)

    def apply_all(self, lr: float) -> None:
        """Clip the gradients and update every element of this rank."""
        self.clip()
        self.apply(lr, 0, self._arena.count)

    def apply(self, lr: float, start: int, stop: int) -> None:
        """Update this rank's elements within ``start:stop``, as part of update number ``step``."""
        for (first, last), slots in self._states():
            for a, b in cut([(first, last)], start, stop):
                self._apply(slots, lr, a, b, first)

    def _apply(self, slots, lr: float, start: int, stop: int, first: int) -> None:
        given = self._ops, self._arena.weights, self._grads, slots, lr
        if self._squares is None or self._layerwise is None:
            self._optimizer.apply(*given, self._counted(), start, stop, first)
        else:
            self._layerwise.move(*given, self._counted(), start, stop, self._squares, first)

    def _counted(self) -> int:
        return max(self.step, 1)  # a rehearsal comes before the first update

    def _states(self) -> Iterator[tuple[Piece, dict]]:
        """Each piece, and its part of the state."""
        at = 0
        for start, stop in self.pieces:
            end = at + stop - start
            yield (start, stop), {name: slot[at:end] for name, slot in self.slots.items()}
            at = end

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        if self.clips:
            rehearse_clip(self._ops, self._grads)
        nothing = {name: slot[:0] for name, slot in self.slots.items()}
        for run in self._optimizer.runs:
            middle = (run.start + run.stop) // 2  # inside the run: the updated part is empty
            self._apply(nothing, 0.0, middle, middle, middle)

    def arrays(self, alike: bool) -> list[OwnedArray]:
        """Return the arrays of state on this rank; ``alike``: every rank holds the same now."""
        return [OwnedArray(name, slot, self.pieces, alike) for name, slot in self.slots.items()]

    # ── state: over the whole arena ───────────────────────────────────────────────────────────────────────────
    def place(self, name: str, flat: Array) -> None:
        """Copy this rank's part of a slot to its place in ``flat``, an array over the arena."""
        for (start, stop), slots in self._states():
            self._ops.copy(slots[name], flat[start:stop])

    def state(self) -> dict:
        """Return the step, and each slot on the host, on a rank that updates everything."""
        return {STEP: self.step, **{name: self._ops.to_host(slot) for name, slot in self.slots.items()}}

    def gathered(self, flat: Array, gather: Callable[[], None]) -> dict:
        """Return the same on ranks with pieces; collective. ``gather`` brings each rank's pieces of ``flat``, an array
        over the arena, to all ranks."""
        return {STEP: self.step, **{name: self._gathered(name, flat, gather) for name in self.slots}}

    def _gathered(self, name: str, flat: Array, gather: Callable[[], None]) -> np.ndarray:
        self.place(name, flat)
        gather()
        return self._ops.to_host(flat)

    def take(self, state: dict) -> None:
        """Take this rank's part of a state in host arrays over the arena. Raises CheckpointError, before any change,
        for a state of another arena."""
        check_sizes(state, self._arena.count)
        self.step = int(state[STEP])
        for (start, stop), slots in self._states():
            for name, slot in slots.items():
                self._ops.upload(state[name][start:stop], slot)


def everything(arena: Arena) -> list[Piece]:
    return [(0, arena.count)] if arena.count else []


def check_names(found: Collection[str], wanted: Collection[str], optional: Collection[str] = ()) -> None:
    """Raises CheckpointError where a state of these names is another optimizer's or another strategy's: it must have
    the wanted names, and may have the optional ones. The step, which every state has, may be left out."""
    found, wanted = {STEP, *found}, {STEP, *wanted}
    if not wanted <= found <= wanted | set(optional):
        raise CheckpointError(texts.OTHER_STATE(found=", ".join(sorted(found)), wanted=", ".join(sorted(wanted))))


def check_sizes(state: dict, count: int) -> None:
    """Raises CheckpointError for a state of an arena that has not ``count`` elements."""
    for name in set(state) - {STEP}:
        if state[name].shape != (count,):
            raise CheckpointError(texts.OTHER_SIZE(name=name, found=state[name].size, wanted=count))
