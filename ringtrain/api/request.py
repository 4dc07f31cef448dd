"""The request of an all-reduce, and the check that all ranks make the same."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ringtrain.allreduce.catalogue import check_algorithm
from ringtrain.allreduce.dtypes import OPS, TYPES, NumberType
from ringtrain.allreduce.wire_formats import NONE, check_wire
from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray
from ringtrain.errors import UsageError, everywhere, nearest
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    shape, dtype: of the array, the same on all ranks
    op:           sum, mean, max or min
    algorithm:    name of the algorithm
    wire:         name of the messages' type
    place:        position of the result in the communicator's memory (:meth:`Memory.place`); None elsewhere
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    algorithm: str
    wire: str = NONE
    place: tuple[int, int] | None = None

    @property
    def numbers(self) -> NumberType:
        return TYPES[self.dtype]

    @property
    def reduction(self) -> str:
        """The operation in the MPI's terms: a mean is a sum that is divided afterwards."""
        return "sum" if self.op == MEAN else self.op

    def __str__(self) -> str:
        wire = "" if self.wire == NONE else texts.OVER_WIRE(wire=self.wire)
        place = "" if self.place is None else texts.IN_BLOCK(block=self.place[0], offset=self.place[1])
        return texts.REQUEST(
            op=self.op, dtype=self.dtype, shape=list(self.shape), algorithm=self.algorithm, wire=wire, place=place
        )


@lru_cache(maxsize=256)
def check_request(dtype: str, op: str, algorithm: str, wire: str = NONE) -> NumberType:
    """Return the type of that name. Raises UsageError for a request that no rank could make."""
    check_type(dtype)
    numbers = TYPES[dtype]
    if op not in OPS:
        raise UsageError(texts.UNKNOWN_OPERATION(op=op, hint=nearest(op, OPS)))
    if op == MEAN and numbers.integral:
        raise UsageError(texts.MEAN_NOT_WHOLE(dtype=dtype))
    check_wire(wire)
    check_algorithm(algorithm, wire != NONE)
    if wire != NONE and (dtype != "float32" or op not in ("sum", MEAN)):
        raise UsageError(texts.WIRE_CARRIES(wire=wire, op=op, dtype=dtype))
    return numbers


def check_type(dtype: str) -> None:
    """Raise UsageError for elements that cannot be reduced."""
    if dtype not in TYPES:
        raise UsageError(texts.NOT_REDUCED(dtype=dtype, known=", ".join(TYPES)))


def type_name(dtype) -> str:
    """Return the name of a type given in NumPy's way, or as "bfloat16". Raises UsageError."""
    try:
        name = dtype if dtype in tuple(TYPES) else np.dtype(dtype).name
    except TypeError as error:
        raise UsageError(texts.UNKNOWN_TYPE(dtype=dtype, hint=nearest(str(dtype), TYPES))) from error
    check_type(name)
    return name


def check_result(out: BorrowedArray, given: BorrowedArray) -> None:
    """Raise UsageError if ``out`` cannot take the result."""
    if (out.dtype, out.host.shape) != (given.dtype, given.host.shape):
        raise UsageError(
            texts.UNLIKE(
                out_dtype=out.dtype, out_shape=list(out.host.shape), dtype=given.dtype, shape=list(given.host.shape)
            )
        )
    check_writable_array(out.host, texts.OUT)


def check_writable_array(host: np.ndarray, what: str) -> None:
    """Raise UsageError for a read-only array. ``what`` is its name in the text."""
    if not host.flags.writeable:
        raise UsageError(texts.READ_ONLY(name=what))


def copy_if_aliased(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return ``source``, or a copy of it if writing the target would change it before it is read."""
    if source is target:
        return source
    same = (source.ctypes.data, source.strides) == (target.ctypes.data, target.strides)
    return source if same or not np.may_share_memory(source, target) else source.copy()


def agree_on_call(transport: Transport, call: str) -> None:
    """Check that all ranks make this call. Collective. Raises UsageError on all ranks if they do not."""
    every = transport.gather_json(call)
    if len(set(every)) == 1:
        return
    groups = [
        texts.CALL_OF(ranks=peers(rank for rank, other in enumerate(every) if other == each), call=each)
        for each in dict.fromkeys(every)
    ]
    raise everywhere(UsageError(texts.CALLS_DIFFER(calls="; ".join(groups))))
