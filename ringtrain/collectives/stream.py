"""Streamed collectives by name: ``stream``, its variants that are faster on some machines, and ``stream:8x4``: by
levels of this shape."""

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.execution.streamed import Streamed, StreamVariant, StreamWindow
from ringtrain.collectives.levels import is_shape, named_shape, unlike
from ringtrain.errors import UsageError, nearest
from ringtrain.ops.cpu.mapped import TYPES
from ringtrain.ops.cpu.streamed import ADDING, ALL_REDUCE, IN_PIECES, MOST_RANKS
from ringtrain.transport.base import Transport

STREAM = "stream"
# Plain stores are faster where ranks share a cache, those past the caches where they do not; shorter chunks, where the
# nearest caches are small.
LONGEST = 256 << 10  # bytes of a chunk
LEAST_PIECE = 4 << 10  # bytes of a chunk for one rank: below, waits cost more than copies
STREAMS = {
    STREAM: StreamVariant("faster", LONGEST),
    "stream:plain": StreamVariant("plain", LONGEST),
    "stream:past-caches": StreamVariant("past caches", LONGEST),
    "stream:64K": StreamVariant("faster", 64 << 10),
}
_WINDOWS: WeakKeyDictionary[Transport, StreamWindow] = WeakKeyDictionary()


def is_stream(algorithm: str) -> bool:
    """Whether the algorithm streams, in any variant."""
    return algorithm.partition(":")[0] == STREAM


def check_stream(name: str, wired: bool) -> None:
    """Check a name. Raises UsageError if it is unknown, or if ``wired``: it has no messages to round."""
    variant_of(name)
    if wired:
        raise UsageError(texts.NO_MESSAGES.format(name=name))


def variant_of(name: str) -> StreamVariant:
    """Return what a name stands for. Raises UsageError if it is unknown."""
    if is_shape(name.partition(":")[2]):
        return replace(STREAMS[STREAM], shape=named_shape(name))
    if name not in STREAMS:
        raise UsageError(texts.UNKNOWN_ALGORITHM.format(name=name, hint=nearest(name, STREAMS)))
    return STREAMS[name]


def stream_window(transport: Transport) -> StreamWindow:
    """Return the window of this transport's ranks. Collective the first time."""
    window = _WINDOWS.get(transport)
    if window is None:
        window = _WINDOWS[transport] = StreamWindow(transport)
    return window


def cannot_stream(
    transport: Transport, buffer: Array, dtype: str, collective: str = ALL_REDUCE, name: str = STREAM
) -> str | None:
    """Return the reason why such a buffer cannot be streamed here; None if it can. Collective the first time."""
    if transport.nodes > 1:
        return f"ranks are on {transport.nodes} nodes, and it works within one"
    if collective in ADDING and dtype not in TYPES:
        return texts.NOT_ADDED.format(known=", ".join(TYPES), dtype=dtype)
    if not isinstance(buffer, np.ndarray):
        return "the buffer is not in host memory"
    if transport.local_size > MOST_RANKS:
        return f"the node has {transport.local_size} ranks, and it takes {MOST_RANKS}"
    if stream_window(transport).memory is None:
        return ": ".join(
            filter(None, ("the ranks of the node have no memory that they share", transport.why_not_shared))
        )
    if (shape := variant_of(name).shape) and (other := unlike(shape, transport.local_size)):
        return other
    if collective in IN_PIECES:
        piece = stream_window(transport).chunk_bytes(LONGEST, transport.local_size)
        if piece < LEAST_PIECE:
            return f"the node has {transport.local_size} ranks, and each would get {piece:,} bytes at once"
    return None


def make_streamed(transport: Transport, name: str, op: str, dtype: str, count: int, itemsize: int, **more) -> Streamed:
    """Return collectives of ``count`` elements where :func:`cannot_stream` finds no reason against it. ``more``: as of
    :class:`Streamed`"""
    window, variant = stream_window(transport), variant_of(name)
    return Streamed(transport, window, name, variant, op, dtype, count, itemsize, **more)


def prepare_streamed(
    transport: Transport, buffer: Array, name: str, op: str, dtype: str, content: str = ""
) -> Streamed:
    """Return the all-reduce of one buffer in place. Collective the first time. Raises UsageError."""
    if why := cannot_stream(transport, buffer, dtype, name=name):
        raise UsageError(texts.CANNOT_RUN.format(algorithm=name, why=why))
    streamed = make_streamed(transport, name, op, dtype, buffer.size, buffer.dtype.itemsize, content=content)
    flat = np.asarray(buffer).reshape(-1)
    streamed.bind(flat, flat)
    return streamed
