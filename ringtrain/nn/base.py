"""The interface of a layer: two functions of explicit arguments, and the context of a pass.

``forward(ctx, weights, xs) → (y, tape)`` and ``backward(ctx, weights, grads, dy, tape, wanted) → dxs``. The
tape is a value: several passes may be in flight, each with a workspace of its own. Weights and gradients are
views into the arena, by the parameter's short name ("weight", "bias")."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ringtrain.arrays import Array
from ringtrain.memory.spans import Fill as Fill  # layers, of plug-ins too, take it from here
from ringtrain.memory.spans import Parameter, Shape
from ringtrain.memory.workspace import Workspace
from ringtrain.ops.base import Ops

AddOverRanks = Callable[[np.ndarray], None]
Views = dict[str, Array]  # of a layer's parameters, by their short names
Wanted = bool | Array  # whether a gradient is wanted; an array: added to this one


@dataclass(slots=True)
class Pass:
    """The context of one forward and backward pass: passed in, never ambient.

    examples:   int64 device array, the data-set index of each example: keys of random numbers
    total:      examples that batch statistics are averaged over: of the iteration, on all ranks, or on this one
                if each rank has weights of its own (:meth:`ringtrain.exchange.base.Exchange.denominator`)
    key:        uint64 device array of one element, which mixes seed and iteration: the other key of random numbers
    accumulate: whether gradients are added to the arena's contents (further micro-batches)
    add_over_ranks: adds a flat float64 host array over all ranks, in place: then batch statistics are of the
                whole batch, which must be in one pass on each rank; None: of ghost batches
    recorded:   whether passes may be recorded: input, examples and the gradient of the output keep their addresses for
                every pass of this many examples, until ``space`` replaces an array
    waits:      names of spans before which forward is cut, since their weights may not have arrived yet
    cuts:       names of spans after which backward is cut, since their gradients start an exchange
    factor:     float64 device array of one element, which multiplies the gradient of the loss; None: 1
    recompute:  whether activations of blocks of layers are dropped, and computed again in backward
    layer:      the layer's name, for people; empty while a recorded pass is replayed"""

    ops: Ops
    space: Workspace
    training: bool = True
    examples: Array | None = None
    total: int = 0
    key: Array | None = None
    accumulate: bool = False
    add_over_ranks: AddOverRanks | None = None
    recorded: bool = False
    waits: frozenset[str] = frozenset()
    cuts: frozenset[str] = frozenset()
    factor: Array | None = None
    recompute: bool = False
    layer: str = ""

    @property
    def rounds(self) -> bool:
        """Whether products take weights in another type than they have."""
        return self.ops.active != self.ops.dtype

    @property
    def makes_ghost_statistics(self) -> bool:
        """Whether batch normalisation makes statistics of ghost batches in this pass, beside other operations."""
        return self.training and self.add_over_ranks is None and self.ops.fused


@dataclass(frozen=True)
class Layer(ABC):
    """Stateless: its settings, and no state of a run. Final classes, one a kind, each a frozen dataclass whose fields
    are the keys of a model file (see ringtrain.nn.settings). ``frozen``: short names of parameters that are not
    updated; not a key of model files (:mod:`ringtrain.nn.freeze`). ``adds``: whether :meth:`backward` can add to a
    gradient of its input, where operations are ``fused``. ``factors``: parameters that products take alone, and may be
    given as :class:`RoundedWeights`."""

    adds: ClassVar[bool] = False
    factors: ClassVar[tuple[str, ...]] = ()
    name: str
    frozen: frozenset[str] = field(default=frozenset(), kw_only=True)

    @abstractmethod
    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the output's shape; raise ModelError, naming the layer, if the inputs do not fit."""

    def parameters(self, inputs: Sequence[Shape]) -> tuple[Parameter, ...]:
        return ()

    def flops(self, inputs: Sequence[Shape]) -> int:
        """Return the multiplications and additions of a forward pass of one example."""
        return 0

    def variant(self, ops: Ops, count: int, inputs: Sequence[Shape]) -> str:
        """Return the variant of the operations for ``count`` examples, in a word; nothing where there is one."""
        return ""

    def nonfinite_cause(self) -> str:
        """Return why the output of finite inputs and weights may not be finite, for people; nothing where that is
        overflow alone."""
        return ""

    def repeats(self, ctx: Pass) -> bool:
        """Return whether every pass like this one, of training or not, adding over ranks or not, issues the same
        operations, and has no side effects on the host."""
        return True

    @abstractmethod
    def forward(self, ctx: Pass, weights: Views, xs: Sequence[Array]) -> tuple[Array, Any]: ...

    @abstractmethod
    def backward(
        self, ctx: Pass, weights: Views, grads: Views, dy: Array, tape: Any, wanted: Sequence[Wanted]
    ) -> Sequence[Array | None]:
        """Return the gradient of each input, or None if it is not wanted. ``dy`` belongs to this layer, which may
        overwrite it; each returned array belongs to its receiver: no two may share memory. A layer that ``adds`` may
        be given an array in place of True, and adds to it."""


@dataclass(frozen=True)
class Fusable(Layer):
    """A layer that can end with max(·, 0); ``relu`` is not a key of model files."""

    relu: bool = field(default=False, kw_only=True)
