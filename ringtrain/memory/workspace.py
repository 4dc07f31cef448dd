"""The memory of a pass: arrays by name; arrays that are not needed at the same time share memory."""

import math
from collections.abc import Iterable

from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.memory.spans import Shape
from ringtrain.ops.base import Ops


class Workspace:
    """Named arrays, made once and reused: a steady iteration allocates nothing.

    Their type is the type of activations (``ops.active``) by default. The leading axis of an array may shrink from call
    to call (a tail): the call then returns a slice of the same memory. ``replaced``: how often a larger array has
    replaced one; as long as that stays, one name and shape is always the same memory.

    Activations and their gradients are many, and each is needed for a part of the pass. :meth:`shared` gives them slots
    of memory. The first pass of each kind plans: :meth:`keep` tells which arrays are still needed, and the others'
    slots are free for further names. Later passes of the kind have the same names at the same places."""

    def __init__(self, ops: Ops):
        self._ops = ops
        self._arrays: dict[str, Array] = {}
        self._slots: list[Array] = []  # flat
        self._slot_indices: dict[tuple[str, str], int] = {}  # (kind of pass, name) → slot
        self._used: set[int] = set()  # slots, as far as the first pass of this kind has come
        self._planned: set[str] = set()  # kinds of passes
        self._kind, self._complete = "", True  # complete: without an empty array so far
        self.replaced = 0

    def __call__(self, name: str, shape: Shape, dtype: DTypeLike | None = None) -> Array:
        """Return the array of this name, whose memory is its own."""
        array = self._arrays.get(name)
        if array is not None and dtype is not None and array.dtype != dtype:  # another source of examples
            array, self.replaced = None, self.replaced + 1
        if array is None or array.shape[1:] != tuple(shape[1:]) or array.shape[0] < shape[0]:
            self.replaced += array is not None
            array = self._arrays[name] = self._ops.empty(shape, self._ops.active if dtype is None else dtype)
        return array if array.shape[0] == shape[0] else array[: shape[0]]

    # ── memory that is shared ─────────────────────────────────────────────────────────────────────────────
    def begin(self, kind: str) -> None:
        """Begin a pass of this kind: no array of :meth:`shared` is needed any more. A plan that has not come to its
        end is forgotten: what it takes for free might be needed later in the pass."""
        unplanned = [key for key in self._slot_indices if key[0] not in self._planned]
        self.replaced += bool(unplanned)
        for key in unplanned:
            del self._slot_indices[key]
        self._kind, self._complete = kind, True
        self._used.clear()

    def switch_kind(self, kind: str) -> None:
        """Give further names of the pass places of their own kind: where a layer runs again, in another place."""
        self._kind = kind

    def end(self, *kinds: str) -> None:
        """End a pass of these kinds: its places stay, unless an array was empty, which has no place."""
        if self._complete:
            self._planned.update(kinds)

    @property
    def planning(self) -> bool:
        """Whether :meth:`keep` has to be told what is needed."""
        return self._kind not in self._planned

    def shared(self, name: str, shape: Shape) -> Array:
        """Return the array of this name in this kind of pass. Its memory is another name's as soon as it is not
        kept."""
        count = math.prod(shape)
        if not count:
            self._complete = False
            return self(name, shape)
        index = self._slot_indices.get((self._kind, name))
        if index is None:
            index = self._slot_indices[self._kind, name] = self._free_slot(count)
        elif self._slots[index].size < count:
            self.replaced += 1
            self._slots[index] = self._ops.empty((count,), self._ops.active)
        self._used.add(index)
        return self._slots[index][:count].reshape(shape)

    def keep(self, arrays: Iterable[Array]) -> None:
        """Of all arrays of :meth:`shared` only these, or what they are views of, are still needed."""
        if not self.planning:
            return
        addresses = [self._ops.address(array) for array in arrays]
        self._used = {index for index, slot in enumerate(self._slots) if self._holds(slot, addresses)}

    def _free_slot(self, count: int) -> int:
        """Return a slot for a new name: the smallest free one that is large enough, or a new one. Where the kind is
        planned nobody knows what is free."""
        free = [index for index in range(len(self._slots)) if index not in self._used] if self.planning else []
        fitting = [index for index in free if self._slots[index].size >= count]
        if fitting:
            return min(fitting, key=lambda index: self._slots[index].size)
        self._slots.append(self._ops.empty((count,), self._ops.active))
        return len(self._slots) - 1

    def _holds(self, slot: Array, addresses: list[int]) -> bool:
        start = self._ops.address(slot)
        return any(start <= address < start + slot.size * slot.dtype.itemsize for address in addresses)

    # ── all of it ─────────────────────────────────────────────────────────────────────────────────────────
    @property
    def nbytes(self) -> int:
        return sum(array.size * array.dtype.itemsize for array in (*self._arrays.values(), *self._slots))

    def clear(self) -> None:
        """Free all memory."""
        self.replaced += len(self._arrays) + len(self._slots)
        for container in (self._arrays, self._slots, self._slot_indices, self._used, self._planned):
            container.clear()
