"""The request of an all-reduce, and the check that all ranks make the same."""

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from ringtrain.allreduce.catalogue import check_algorithm
from ringtrain.allreduce.dtypes import MEAN, OPS, TYPES, NumberType, reduction_of
from ringtrain.allreduce.wire_formats import NONE, check_wire
from ringtrain.api.libraries import BorrowedArray
from ringtrain.collectives.execution.streamed import Streamed
from ringtrain.collectives.stream import cannot_stream, make_streamed
from ringtrain.errors import UsageError, everywhere, nearest
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.native_call import ALL_GATHER, NativeCall
from ringtrain.transport.waiting import peers

SYNC_POINTS = 1024  # that are kept
_TOKEN = np.zeros(1, np.int64)  # what ranks reduce where they meet


@dataclass(frozen=True, slots=True)
class Request:
    """A request."""

    shape: tuple[int, ...]  # of the array, the same on all ranks
    dtype: str  # of the array, the same on all ranks
    op: str  # sum, mean, max or min
    algorithm: str  # name of the algorithm
    wire: str = NONE  # name of the messages' type
    # of the result in the communicator's memory (:meth:`Memory.position`); None elsewhere
    position: tuple[int, int] | None = None

    @property
    def numbers(self) -> NumberType:
        return TYPES[self.dtype]

    @property
    def carrier(self) -> NumberType:
        return carrier_of(self.dtype, self.op)

    @property
    def reduction(self) -> str:
        return reduction_of(self.op)

    @property
    def of(self) -> str:
        """The shape in words, which tells arrays of as many elements apart; "" for an axis alone."""
        return "" if len(self.shape) == 1 else f"of shape {list(self.shape)}"

    def __str__(self) -> str:
        wire = "" if self.wire == NONE else f" over {self.wire}"
        position = "" if self.position is None else f" in block {self.position[0]} at byte {self.position[1]}"
        return f"{self.op} of {self.dtype} {list(self.shape)} by {self.algorithm}{wire}{position}"


@lru_cache(maxsize=256)
def carrier_of(dtype: str, op: str) -> NumberType:
    """Return the type in which the numbers are added: a sum of 16-bit numbers may be infinite where their mean is not,
    so each is divided first, in float32."""
    return TYPES["float32" if op == MEAN and TYPES[dtype].itemsize == 2 else dtype]


@lru_cache(maxsize=256)
def check_request(dtype: str, op: str, algorithm: str, wire: str = NONE) -> NumberType:
    """Return the type of that name. Raises UsageError for a request that no rank could make."""
    numbers = check_operation(dtype, op)
    check_wire(wire)
    check_algorithm(algorithm, wire != NONE)
    if wire != NONE and (dtype != "float32" or op not in ("sum", MEAN)):
        raise UsageError(
            f"a wire of {wire} carries sums and means of float32, and this is {op} of {dtype}: use wire='none'"
        )
    return numbers


def check_operation(dtype: str, op: str) -> NumberType:
    """Return the type of that name. Raises UsageError if its elements are not reduced so."""
    check_type(dtype)
    numbers = TYPES[dtype]
    if op not in OPS:
        raise UsageError(f"unknown operation {op!r}: {nearest(op, OPS)}")
    if op == MEAN and numbers.integral:
        raise UsageError(f"the mean of {dtype} is not an integer: use op='sum', or convert the array to float64")
    return numbers


def check_type(dtype: str) -> None:
    """Raise UsageError for elements that cannot be reduced."""
    if dtype not in TYPES:
        raise UsageError(f"{dtype} elements are not reduced: convert the array to one of {', '.join(TYPES)}")


def type_name(dtype) -> str:
    """Return the name of a type given in NumPy's way, or as "bfloat16". Raises UsageError."""
    try:
        name = dtype if dtype in tuple(TYPES) else np.dtype(dtype).name
    except TypeError as error:
        raise UsageError(f"unknown type {dtype!r}: {nearest(str(dtype), TYPES)}") from error
    check_type(name)
    return name


def check_out(out: BorrowedArray, dtype: str, shape: tuple[int, ...]) -> None:
    """Raise UsageError if ``out`` cannot take a result of that type and shape."""
    if (out.dtype, out.host.shape) != (dtype, shape):
        raise UsageError(f"out is {out.dtype} {list(out.host.shape)}, and must be {dtype} {list(shape)}")
    check_writable_array(out.host, "out")


def check_writable_array(host: np.ndarray, what: str) -> None:
    """Raise UsageError for a read-only array. ``what`` is its name in the text."""
    if not host.flags.writeable:
        raise UsageError(f"{what} cannot be written to: give an array that can, or leave out= out for a new one")


def copy_if_aliased(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return ``source``, or a copy of it if writing the target would change it before it is read."""
    if source is target:
        return source
    same = (source.ctypes.data, source.strides) == (target.ctypes.data, target.strides)
    return source if same or not np.may_share_memory(source, target) else source.copy()


def started(handle: Handle) -> Handle:
    handle.start()
    return handle


_words = lru_cache(maxsize=256)(str)  # a text takes as long as a small message


class Agreement:
    """The check that all ranks make the same call. It ends at ``deadline_s``, the deadline of all calls of its
    communicator, and under the guard with the names of the ranks that do not come.

    On one node ranks meet in the window of streams, whose collectives compare themselves there too: it costs a few µs.

    ``has_window``: whether these ranks have one; ``is_guarded``: whether the guard numbers calls
    """

    def __init__(self, transport: Transport, guard: Guard | None, deadline_s: float):
        self._transport, self._guard, self.deadline_s = transport, guard, deadline_s
        self.is_guarded = guard is not None
        self.has_window = transport.size > 1 and cannot_stream(transport, _TOKEN, _TOKEN.dtype.name) is None
        self._sync_points: dict[str, Streamed] = {}

    def on(self, call: str) -> None:
        """Check a call that is new. Collective. Raises UsageError on all ranks if they do not make the same call;
        MismatchError if it is new on some of them alone."""
        if self.has_window and self._guard is None:  # which sees at once that another rank makes another call
            self._synchronize("a call of a new kind", called=call)
        self._compare(call)

    def again(self, call: str) -> None:
        """Check a call that all ranks have agreed on before, and that would do harm if they made it with another: the
        MPI compares nothing, and may write past the end of an array. Returns when all ranks have come. Raises
        MismatchError on all ranks."""
        if self.has_window:
            self._synchronize(call)
        elif self._transport.size > 1:
            self._compare(call)

    def _synchronize(self, call: str, called: str = "") -> None:
        """Wait for all ranks, and compare the call with theirs. ``called``: its name while it is awaited, if it is
        another one"""
        sync_point = self._sync_points.get(call)
        if sync_point is None:
            if len(self._sync_points) >= SYNC_POINTS:
                del self._sync_points[next(iter(self._sync_points))]
            numbers = _TOKEN.dtype.name, _TOKEN.size, _TOKEN.itemsize
            sync_point = self._sync_points[call] = make_streamed(self._transport, "max", *numbers, call=call)
            sync_point.bind(_TOKEN, _TOKEN)
        if called:
            sync_point.called = called
        self.run(call, sync_point)

    def _compare(self, call: str) -> None:
        digest = np.frombuffer(hashlib.blake2b(call.encode(), digest_size=16).digest(), np.uint8)
        every = np.empty((self._transport.size, digest.size), np.uint8)
        self.wait(
            f"agreement on a new call, {call}",
            lambda: self._transport.native_start(NativeCall(ALL_GATHER, digest, every)),
        )
        if (every != digest).any():
            calls = self._transport.gather_json(call)
            groups = [
                f"{peers(rank for rank, other in enumerate(calls) if other == each)}: {each}"
                for each in dict.fromkeys(calls)
            ]
            raise everywhere(UsageError(f"ranks make different calls: all must make the same. {'; '.join(groups)}"))

    def run(self, call: Hashable, streamed: Streamed) -> None:
        """Run what compares itself with the other ranks' call, in one step where no guard numbers it."""
        if self._guard is None:
            streamed.run(self.deadline_s)
        else:
            self.wait(call, partial(started, streamed))

    def wait(self, call: Hashable, start: Callable[[], Handle]) -> None:
        """Wait for the operation that ``start()`` begins, which the guard numbers as ``call``, a text or in words."""
        handle = start() if self._guard is None else self._guard.started(_words(call), start)
        handle.wait(self.deadline_s)
