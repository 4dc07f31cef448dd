"""The optimizer on the elements of the arena that this rank updates: all of them, or some. Its state is kept for those
alone."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import CheckpointError
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.exchange.update.ranges import Piece, common, cut, elements, trained_pieces
from ringtrain.memory.arena import Arena
from ringtrain.ops.base import Ops
from ringtrain.ops.update import LOSS_SCALE_NUMBERS, RATE, UPDATE_NUMBERS, UPDATES
from ringtrain.optim.optimizers import Optimizer, RuleOptimizer, Slots, make_squares
from ringtrain.transport.base import Transport

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
    """Updates the weights of ``pieces`` by their gradients.

    grads:     flat, over the arena
    pieces:    the elements that this rank updates
    clip_norm: the largest norm of the gradients; None for no limit
    total:     maps this rank's sum of squares to the sum over all gradients that are clipped together; None: this rank
               has them all
    scale:     the factor that the gradients are divided by; None: 1
    add_norms: adds the squares of a layerwise optimizer's norms over the ranks that have parts of the same parameters,
               a flat float64 array of the host, in place; None: this rank updates whole parameters

    ``slots``: name → the optimizer's state, one piece after the other, ``nbytes`` in all. ``trained``: the pieces
    without running statistics. ``numbers``: see :mod:`ringtrain.ops.update`. ``guard``: the totals of the loss of one
    rank alone, by which an update is left out; None: the loss has been checked before an update begins.

    An update is one :meth:`begin`, and then :meth:`apply` for each element once.
    """

    def __init__(
        self,
        ops: Ops,
        arena: Arena,
        optimizer: Optimizer,
        grads: Array,
        pieces: Sequence[Piece],
        clip_norm: float | None = None,
        total: Callable[[float], float] | None = None,
        scale: LossScale | None = None,
        add_norms: Callable[[np.ndarray], None] | None = None,
    ):
        self._ops, self._arena, self._optimizer, self._grads = ops, arena, optimizer, grads
        self._clip_norm, self._total, self._scale, self._add_norms = clip_norm, total, scale, add_norms
        self.pieces, self.trained = pieces, common(trained_pieces(arena.spans), pieces)
        size = elements(pieces)
        self.slots = optimizer.make_slots(partial(ops.zeros, (size,), grads.dtype), pieces)
        self.nbytes = len(self.slots) * size * grads.dtype.itemsize
        self._states = list(self._cut_states())
        self.numbers = ops.zeros((UPDATE_NUMBERS,), "float64")
        self._square_sum = ops.zeros((1,), "float64")
        self._layerwise = optimizer if isinstance(optimizer, RuleOptimizer) and optimizer.layerwise else None
        self._norms = make_squares(optimizer, ops)
        self._host_norms: np.ndarray | None = None
        self.guard: Array | None = None

    @property
    def needs_all(self) -> bool:
        """Whether an update begins with something of all gradients: their norm, or whether they are finite."""
        return self._clip_norm is not None or self._scale is not None

    @property
    def step(self) -> int:
        """The updates so far; waits for the device."""
        return int(self._ops.to_host(self.numbers)[UPDATES])

    @step.setter
    def step(self, count: int) -> None:
        self._ops.put((self._number(UPDATES), float(count)))

    def agree_on_slots(self, transport: Transport) -> None:
        """Have the same arrays of state on all ranks, where they come with updates. Collective."""
        self._optimizer.agree_on_slots(transport.gather_json)

    def _number(self, index: int) -> Array:
        return self.numbers[index : index + 1]

    @property
    def rate_1(self) -> Array:
        """The learning rate of an update, on the device: :meth:`advance` and :meth:`apply` read it."""
        return self._number(RATE)

    @property
    def recorded(self) -> bool:
        """Whether a device may record an update, from :meth:`advance` on."""
        return self._optimizer.recorded and self._total is None and self._add_norms is None

    def begin(self, lr: float) -> None:
        """Begin an update at this learning rate: count it, and find what gradients are multiplied by. Collective if
        norms are of the gradients of several ranks. All gradients are final if it :attr:`needs_all`, or if a layerwise
        optimizer's norms are added over ranks."""
        self._ops.put((self.rate_1, lr))
        self.advance()

    def make(self, lr: float) -> None:
        """Make a whole update at this learning rate."""
        self.begin(lr)
        self.apply()

    def count(self) -> None:
        """Count an update that this rank does not make: it has no example."""
        self._ops.begin_update(self.numbers)

    def advance(self) -> None:
        """Begin an update whose rate is set."""
        squares = self._squares() if self.needs_all else None
        loss_scale, dynamic = (None, False) if self._scale is None else (self._scale.numbers, self._scale.dynamic)
        self._ops.begin_update(self.numbers, squares, self._clip_norm, loss_scale, dynamic, self.guard)
        if self._layerwise is not None and self._norms is not None and self._add_norms is not None:
            self._sum_norms(self._layerwise, self._norms, self._add_norms)

    def _sum_norms(self, optimizer: RuleOptimizer, norms: Array, add: Callable[[np.ndarray], None]) -> None:
        self._ops.fill(norms, 0)
        for (start, stop), slots in self._states:
            optimizer.add_squares(*self._arrays(slots), start, stop, norms, start)
        if self._host_norms is None:
            self._host_norms = self._ops.pinned(norms.shape, "float64")
        self._ops.download(norms, self._host_norms)
        add(self._host_norms.reshape(-1))
        self._ops.upload(self._host_norms, norms)

    def _squares(self) -> Array:
        """The sum of squares of all gradients that are clipped together."""
        self._ops.gradient_squares(self._grads, self.trained, self._square_sum)
        if self._total is not None:
            local = float(self._ops.to_host(self._square_sum)[0])
            self._ops.put((self._square_sum, self._total(local)))
        return self._square_sum

    def apply(self, start: int = 0, stop: int | None = None) -> None:
        """Update this rank's elements within ``start:stop``, or all of them, as part of the update that has begun."""
        stop = self._arena.count if stop is None else stop
        for (first, last), slots in self._states:
            for a, b in cut([(first, last)], start, stop):
                self._apply(slots, a, b, first)

    def _apply(self, slots: Slots, start: int, stop: int, first: int) -> None:
        summed = self._add_norms is not None
        self._optimizer.apply(*self._arrays(slots), start, stop, first, self._norms, summed)

    def _arrays(self, slots: Slots) -> tuple[Ops, Array, Array, Slots, Array]:
        return self._ops, self._arena.weights, self._grads, slots, self.numbers

    def _cut_states(self) -> Iterator[tuple[Piece, dict]]:
        """Each piece, and its part of the state."""
        at = 0
        for start, stop in self.pieces:
            end = at + stop - start
            yield (start, stop), {name: slot[at:end] for name, slot in self.slots.items()}
            at = end

    def rehearse(self) -> None:
        """Run every operation of an update once, and those on elements that sums, averages and servers have; weights
        and state stay as they are. Not collective."""
        ops, kept, nothing = self._ops, self.numbers, self._grads[:0]
        ops.add(nothing, nothing, nothing)
        ops.copy(nothing, nothing)
        ops.scale(nothing, 1.0)
        ops.fill(nothing, 0)
        self.numbers = ops.zeros((UPDATE_NUMBERS,), "float64")  # no update has begun: none is applied
        ops.gradient_squares(self._grads, self.trained, self._square_sum)
        for (start, stop), slots in self._states:
            if self._layerwise is not None and self._norms is not None:
                self._layerwise.add_squares(*self._arrays(slots), start, stop, self._norms, start)
            self._optimizer.apply(*self._arrays(slots), start, stop, start, self._norms, True)
        spare = ops.zeros((LOSS_SCALE_NUMBERS,), "float64")
        ops.fill(spare, 1)
        ops.begin_update(self.numbers, self._square_sum, self._clip_norm, spare if self._scale else None)
        self.numbers = kept

    def arrays(self, alike: bool) -> list[OwnedArray]:
        """Return the arrays of state on this rank; ``alike``: every rank holds the same now."""
        return [OwnedArray(name, slot, self.pieces, alike) for name, slot in self.slots.items()]

    # ── state: over the whole arena ───────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Return the step, and each slot on the host, on a rank that updates everything."""
        return {STEP: self.step, **{name: self._ops.to_host(slot) for name, slot in self.slots.items()}}

    def gathered(self, flat: Array, gather: Callable[[], None]) -> dict:
        """Return the same on ranks with pieces; collective. ``gather`` brings each rank's pieces of ``flat``, an array
        over the arena, to all ranks."""
        state: dict = {STEP: self.step}
        for name in self.slots:
            for (start, stop), slots in self._cut_states():
                self._ops.copy(slots[name], flat[start:stop])
            gather()
            state[name] = self._ops.to_host(flat)
        return state

    def take(self, state: dict) -> None:
        """Take this rank's part of a state in host arrays over the arena. Raises CheckpointError, before any change,
        for a state of another arena."""
        check_sizes(state, self._arena.count)
        self.step = int(state[STEP])
        for (start, stop), slots in self._cut_states():
            for name, slot in slots.items():
                self._ops.upload(state[name][start:stop], slot)


def everything(arena: Arena) -> list[Piece]:
    return [(0, arena.count)] if arena.count else []


def check_names(names: Collection[str], wanted: Collection[str], optional: Collection[str] = ()) -> None:
    """Raises CheckpointError where a state of these names is another optimizer's or another strategy's: it must have
    the wanted names, and may have the optional ones. The step, which every state has, may be left out."""
    names, wanted = {STEP, *names}, {STEP, *wanted}
    if not wanted <= names <= wanted | set(optional):
        raise CheckpointError(
            f"the checkpoint's optimizer keeps {', '.join(sorted(names))}, this run's keeps "
            f"{', '.join(sorted(wanted))}: resume with the --optimizer, the --sync and the --compress that wrote it"
        )


def check_sizes(state: dict, count: int) -> None:
    """Raises CheckpointError for a state of an arena that has not ``count`` elements."""
    for name in set(state) - {STEP}:
        if state[name].shape != (count,):
            raise CheckpointError(
                f"the checkpoint's {name!r} has {state[name].size} elements, this model's has {count}: resume with "
                "the model that wrote it"
            )
