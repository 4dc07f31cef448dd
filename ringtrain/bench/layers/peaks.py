"""The most that the machine gives: multiplications and additions in a large product, bytes in a large copy."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport

SIDE, MOST_SIDE = 512, 8192  # of the square matrices
COPIED = 1 << 24  # elements: beyond any cache
ENOUGH_S, REPEATS = 5e-3, 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """Of all ranks together, each computing at the same time."""

    flops_per_s: float
    bytes_per_s: float

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """Return the least time for so many operations and bytes: one of them is the limit."""
        return max(flops / self.flops_per_s, nbytes / self.bytes_per_s)


def measure_peaks(transport: Transport, ops: Ops) -> Peaks:
    """Measure on all ranks at once; the slowest rank counts for all. Collective."""
    transport.barrier()
    flops = _product_rate(ops)
    transport.barrier()
    nbytes = _copy_rate(ops)
    slowest = np.min(transport.gather_json([flops, nbytes]), axis=0) * transport.size
    return Peaks(*slowest.tolist())


def _product_rate(ops: Ops) -> float:
    """Return operations a second, of matrices that keep a fast device busy long enough."""
    side = SIDE
    while True:
        x, y = (ops.zeros((side, side), ops.active) for _ in range(2))
        w = ops.zeros((side, side))
        seconds = _least(ops, partial(ops.linear, x, w, None, y))
        if seconds >= ENOUGH_S or 2 * side > MOST_SIDE:
            return 2 * side**3 / seconds
        side *= 2


def _copy_rate(ops: Ops) -> float:
    x, y = (ops.zeros((COPIED,)) for _ in range(2))
    return 2 * COPIED * ops.dtype.itemsize / _least(ops, lambda: ops.copy(x, y))


def _least(ops: Ops, run: Callable[[], None]) -> float:
    """Return the least seconds of a call after the first."""
    run()
    ops.synchronize()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        ops.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
