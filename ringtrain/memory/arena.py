"""One flat buffer for all weights and one for all gradients, cut into spans.

    |conv1.weight······|conv1.bias··|conv2.weight··········|...      · padding, zero

Spans follow one another in layer order, each starting at a multiple of 16 elements (a cache line of float32),
so an exchange moves contiguous memory and never packs, and an optimizer runs over neighbours in one call."""

import hashlib
import math
from collections.abc import Callable

from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.memory.spans import Parameter, Span
from ringtrain.ops.base import Ops

ALIGNMENT = 16  # elements
Allocate = Callable[[int, DTypeLike], Array]


def lay_out(table: tuple[tuple[str, Parameter], ...]) -> tuple[Span, ...]:
    """Return the spans of the parameters of a table (full name, parameter), one after another."""
    spans, start = [], 0
    for name, parameter in table:
        stop = start + -(-math.prod(parameter.shape) // ALIGNMENT) * ALIGNMENT
        spans.append(Span(name, start, stop, parameter.shape, parameter))
        start = stop
    return tuple(spans)


class Arena:
    """Weights and gradients of a network.

    allocate:  (count, dtype) → flat array
    table:     :meth:`ringtrain.nn.graph.Graph.parameters`
    exchanged: as ``allocate``, for the gradients: the transport's, whose memory other ranks may write into. Weights
               stay private to this process
    """

    def __init__(
        self,
        allocate: Allocate,
        table: tuple[tuple[str, Parameter], ...],
        dtype: DTypeLike,
        exchanged: Allocate | None = None,
    ):
        self.spans = lay_out(table)
        self.count = self.spans[-1].stop if self.spans else 0
        self.weights = allocate(self.count, dtype)
        self.grads = (exchanged or allocate)(self.count, dtype)

    def weight(self, span: Span) -> Array:
        return self.weights[span.start : span.start + span.count].reshape(span.shape)

    def grad(self, span: Span) -> Array:
        return self.grads[span.start : span.start + span.count].reshape(span.shape)

    def hash(self, ops: Ops) -> str:
        """Return the sha256 of the weights by name, shape and bytes: equal for equal networks, whatever the padding."""
        host, digest = ops.to_host(self.weights), hashlib.sha256()
        for span in self.spans:
            digest.update(f"{span.name} {span.shape} {host.dtype.str}\n".encode())
            digest.update(host[span.start : span.start + span.count].tobytes())
        return digest.hexdigest()


def beginning(arena: Arena, count: int) -> Arena:
    """Return the first ``count`` spans of an arena, in the same memory."""
    table = tuple((span.name, span.parameter) for span in arena.spans[:count])
    return Arena(
        lambda size, dtype: arena.weights[:size], table, arena.weights.dtype, lambda size, dtype: arena.grads[:size]
    )
