"""The optimizer on the elements of the arena that this rank updates: all of them, or some. Its state is kept for those
alone."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ringtrain.errors import CheckpointError
from ringtrain.exchange import texts
from ringtrain.exchange.update.ranges import Piece, cut, elements

STEP = "step"


@dataclass(frozen=True, slots=True)
class OwnedArray:
    """An array of state that a rank keeps: the elements of ``pieces`` of the arena, one piece after the other.
    ``alike``: whether it is over the whole arena, and the same on all ranks now."""

    name: str
    array: object
    pieces: Sequence[Piece]
    alike: bool


class OwnedUpdate:
    """grads:  flat, over the arena: what updates are made of
    pieces: what this rank updates

    ``slots``: name → the optimizer's state, one piece after the other, ``nbytes`` in all. ``step``: updates begun.
    """

    def __init__(self, ops, arena, optimizer, grads, pieces: Sequence[Piece]):
        self._ops, self._arena, self._optimizer, self._grads = ops, arena, optimizer, grads
        self.pieces = pieces
        size = elements(pieces)
        self.slots = {name: ops.zeros((size,), grads.dtype) for name in optimizer.slots}
        self.nbytes = len(self.slots) * size * grads.dtype.itemsize
        self.step = 0
        self._squares = None  # of whole parameters, where they were prepared

    @property
    def layerwise(self) -> bool:
        """Whether the optimizer needs norms of whole parameters: then who has parts of some calls :meth:`prepare`."""
        return self._optimizer.layerwise

    def prepare(self, total: Callable) -> None:
        """Collective among those that have parts of parameters; the gradients of all are final. ``total`` adds a flat
        float64 array over them, in place: sums of squares, of which norms are made."""
        if self._squares is None:
            self._squares = self._optimizer.squares()
        squares = self._squares
        squares.fill(0.0)
        arrays = self._arena.weights, self._grads
        for (start, stop), slots in self._states():
            self._optimizer.prepare(self._ops, *arrays, slots, self._counted(), start, stop, squares, first=start)
        total(squares.reshape(-1))

    def apply(self, lr: float, start: int, stop: int) -> None:
        """Update what is this rank's of elements ``start:stop``, as part of update number ``step``."""
        for (first, last), slots in self._states():
            for a, b in cut([(first, last)], start, stop):
                self._apply(slots, lr, a, b, first)

    def _apply(self, slots, lr: float, start: int, stop: int, first: int) -> None:
        given = self._ops, self._arena.weights, self._grads, slots, lr
        if self._squares is None:
            self._optimizer.apply(*given, self._counted(), start, stop, first)
        else:
            self._optimizer.move(*given, start, stop, self._squares, first)

    def _counted(self) -> int:
        return max(self.step, 1)  # before the first update there are rehearsals

    def _states(self) -> Iterator[tuple[Piece, dict]]:
        """Each piece, and its part of the state."""
        at = 0
        for start, stop in self.pieces:
            end = at + stop - start
            yield (start, stop), {name: slot[at:end] for name, slot in self.slots.items()}
            at = end

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        nothing = {name: slot[:0] for name, slot in self.slots.items()}
        for run in self._optimizer.runs:
            middle = (run.start + run.stop) // 2  # inside of the run: the part of it that is updated is empty
            self._apply(nothing, 0.0, middle, middle, middle)

    def arrays(self, alike: bool) -> list[OwnedArray]:
        """The arrays of state on this rank; ``alike``: every rank holds the same now."""
        return [OwnedArray(name, slot, self.pieces, alike) for name, slot in self.slots.items()]

    # ── state: over the whole arena ───────────────────────────────────────────────────────────────────────────
    def place(self, name: str, flat) -> None:
        """Copy this rank's part of a slot to where it lies in ``flat``, an array over the arena."""
        for (start, stop), slots in self._states():
            self._ops.copy(slots[name], flat[start:stop])

    def state(self) -> dict:
        """Of a rank that updates everything: the step, and each slot on the host."""
        return {STEP: self.step, **{name: self._ops.to_host(slot) for name, slot in self.slots.items()}}

    def gathered(self, flat, gather: Callable[[], None]) -> dict:
        """The same, of ranks that have pieces each; collective. ``gather`` brings to all what each has in its own
        pieces of ``flat``, an array over the arena."""
        return {STEP: self.step, **{name: self._gathered(name, flat, gather) for name in self.slots}}

    def _gathered(self, name: str, flat, gather: Callable[[], None]):
        self.place(name, flat)
        gather()
        return self._ops.to_host(flat)

    def take(self, state: dict) -> None:
        """The reverse: this rank's part of a state in host arrays over the arena. Raises CheckpointError, before
        anything is taken, where it is of another arena."""
        check_sizes(state, self._arena.count)
        self.step = int(state[STEP])
        for (start, stop), slots in self._states():
            for name, slot in slots.items():
                self._ops.upload(state[name][start:stop], slot)


def everything(arena) -> list[Piece]:
    return [(0, arena.count)] if arena.count else []


def check_names(found: Collection[str], wanted: Collection[str], optional: Collection[str] = ()) -> None:
    """Raises CheckpointError where a state of these names is another optimizer's or another strategy's: it must have
    those that are wanted, and may have those that are optional. The step, which all have, may be left out."""
    found, wanted = {STEP, *found}, {STEP, *wanted}
    if not wanted <= found <= wanted | set(optional):
        raise CheckpointError(texts.OTHER_STATE(found=", ".join(sorted(found)), wanted=", ".join(sorted(wanted))))


def check_sizes(state: dict, count: int) -> None:
    """Raises CheckpointError where a state is of another arena than one of ``count`` elements."""
    for name in set(state) - {STEP}:
        if state[name].shape != (count,):
            raise CheckpointError(texts.OTHER_SIZE(name=name, found=state[name].size, wanted=count))
