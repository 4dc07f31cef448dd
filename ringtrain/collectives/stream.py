"""Streamed collectives by name: ``stream``."""

from weakref import WeakKeyDictionary

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.execution.streamed import STREAM, Streamed, StreamWindow
from ringtrain.errors import UsageError
from ringtrain.ops.cpu.mapped import TYPES
from ringtrain.ops.cpu.streamed import ADDING, ALL_REDUCE, IN_PIECES, MOST_RANKS
from ringtrain.transport.base import Transport

LEAST_PIECE = 4 << 10  # bytes of a chunk for one rank: below, waits cost more than copies
_WINDOWS: WeakKeyDictionary[Transport, StreamWindow] = WeakKeyDictionary()


def stream_window(transport: Transport) -> StreamWindow:
    """Return the window of this transport's ranks. Collective the first time."""
    window = _WINDOWS.get(transport)
    if window is None:
        window = _WINDOWS[transport] = StreamWindow(transport)
    return window


def cannot_stream(transport: Transport, buffer: Array, dtype: str, collective: str = ALL_REDUCE) -> str | None:
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
    if collective in IN_PIECES:
        piece = stream_window(transport).chunk_bytes(transport.local_size)
        if piece < LEAST_PIECE:
            return f"the node has {transport.local_size} ranks, and each would get {piece:,} bytes at once"
    return None


def make_streamed(transport: Transport, op: str, dtype: str, count: int, itemsize: int, **more) -> Streamed:
    """Return collectives of ``count`` elements where :func:`cannot_stream` finds no reason against it. ``more``: as of
    :class:`Streamed`"""
    return Streamed(transport, stream_window(transport), op, dtype, count, itemsize, **more)


def prepare_streamed(transport: Transport, buffer: Array, op: str, dtype: str, content: str = "") -> Streamed:
    """Return the all-reduce of one buffer in place. Collective the first time. Raises UsageError."""
    if why := cannot_stream(transport, buffer, dtype):
        raise UsageError(texts.CANNOT_RUN.format(algorithm=STREAM, why=why))
    streamed = make_streamed(transport, op, dtype, buffer.size, buffer.dtype.itemsize, content=content)
    flat = np.asarray(buffer).reshape(-1)
    streamed.bind(flat, flat)
    return streamed
