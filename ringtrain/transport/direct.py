"""Device memory handed to the MPI by its address: for an MPI that can read and write a device's memory.

Contiguous, from one rank to another, and no more: an MPI that moves such memory may yet do reductions, and its own
copies within collectives, by host code.
"""

from collections.abc import Sequence

import numpy as np

from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.memory import Raw


class Direct:
    """Sends and receives of ``inner``, device memory among them. ``runtime`` is the device's."""

    words = "handed to the MPI by its address"

    def __init__(self, inner: Transport, runtime):
        self._inner, self._runtime = inner, runtime

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._inner.sends([(peer, self._raw(span)) for peer, span in moves], tag)

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._inner.recvs([(peer, self._raw(span)) for peer, span in moves], tag)

    def _raw(self, span):
        if isinstance(span, np.ndarray):
            return span
        return Raw(self._runtime.address(span), span.size * span.dtype.itemsize, span)
