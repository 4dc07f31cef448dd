"""The way of arrays outside the communicator's memory: they are streamed, within a node."""

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ringtrain.allreduce.auto import Candidates, select_algorithm
from ringtrain.allreduce.catalogue import AUTO
from ringtrain.allreduce.tuning_table import Table
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.api.plan import StreamPlan
from ringtrain.api.request import Request
from ringtrain.collectives import texts
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.stream import STREAM, STREAMS, cannot_stream, is_stream
from ringtrain.errors import UsageError, everywhere
from ringtrain.transport.base import Transport

KEPT = 64


class StreamChoice:
    """Which requests are streamed, and how.

    agree: agree(request) checks that all ranks make this call; collective. It is asked before the first that may be
           streamed: their window of shared memory is made then
    """

    def __init__(self, transport: Transport, tuning: Table | None, agree: Callable[[Request], None]):
        self._transport, self._tuning, self._agree = transport, tuning, agree
        self._agreed = False

    def name_for(self, request: Request) -> str | None:
        """Return the name of the stream that runs a request; None if none does. Collective. Raises UsageError, on all
        ranks, for a stream that is asked for by name and cannot run.
        """
        named = is_stream(request.algorithm)
        anywhere = request.position is None and request.wire == NONE and math.prod(request.shape) > 0
        if self._transport.size == 1 or not anywhere or not (named or request.algorithm == AUTO):
            return None
        if not self._agreed:
            self._agree(request)
            self._agreed = True
        why = cannot_stream(self._transport, np.empty(0), request.dtype)
        if why and named:
            raise everywhere(UsageError(texts.CANNOT_RUN(algorithm=request.algorithm, why=why)))
        if why or named:
            return None if why else request.algorithm
        return self._fastest(request)

    def _fastest(self, request: Request) -> str:
        """Return the same name on all ranks: they have the same measurements."""
        if self._tuning is None:
            return STREAM
        candidates = Candidates(self._tuning.layout, tuple(STREAMS), {})
        nbytes = math.prod(request.shape) * request.numbers.itemsize
        return select_algorithm(nbytes, request.dtype, request.reduction, candidates, self._tuning).algorithm


class SameArrays:
    """The arrays that were streamed in place last, by the communicator's own algorithm: the same operation on the same
    array again skips all checks.

    A weak reference says whether it is the same array, and keeps none: NumPy resizes no array that has one. An array's
    type and shape may be set, it may become read-only, and a tensor's memory may be exchanged: these are compared.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _SameArray] = {}

    def find(self, array, op: str) -> Reduction | None:
        """Return the reduction of this array, if it is kept."""
        same = self._kept.get(id(array))
        return same.reduction if same is not None and same.fits(array, op) else None

    def keep(self, array, host: np.ndarray, op: str, make: Callable[[], StreamPlan]) -> None:
        """Keep the reduction of an array that comes again, if its memory can be known. ``host``: that memory"""
        plain = type(array) is np.ndarray
        usable = host.flags.carray and host.dtype.isnative
        if not usable or not (plain or type(array).__module__ == "torch"):
            return
        same, key = self._kept.get(id(array)), id(array)
        if same is not None and same.fits(array, op):
            same.reduction = make().bind(same.array, host)
            return
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        reference = weakref.ref(array, lambda _: self._kept.pop(key, None))
        self._kept[key] = _SameArray(reference, op, array, plain)

    def clear(self) -> None:
        self._kept.clear()


class _SameArray:
    """An array that came once; ``reduction``: its own, when it came again. dtype: of NumPy's; state: of a tensor"""

    __slots__ = ("array", "dtype", "op", "reduction", "shape", "state")

    def __init__(self, reference: weakref.ref, op: str, array: Any, plain: bool):
        self.array, self.op, self.shape = reference, op, array.shape
        self.dtype = array.dtype if plain else None
        self.state = None if plain else _state(array)
        self.reduction: Reduction | None = None

    def fits(self, array: Any, op: str) -> bool:
        kept: Any = self.array()
        if kept is not array or self.op != op or array.shape != self.shape:
            return False
        if self.state is None:
            return array.dtype is self.dtype and array.flags.writeable
        return _state(array) == self.state


def _state(tensor) -> tuple:
    """Return what a tensor's memory and its elements are."""
    return tensor.data_ptr(), tensor.nbytes, tensor.dtype, tensor.is_contiguous(), tensor.requires_grad
