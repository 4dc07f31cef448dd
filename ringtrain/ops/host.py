"""The common base of operations on host memory: they are done when they return, so there is nothing to wait for."""

from time import perf_counter

import numpy as np

from ringtrain.ops.host_norm import HostNorm
from ringtrain.ops.host_update import HostUpdate
from ringtrain.ops.machine import Mark


class HostMark(Mark):
    """A mark on a host: everything before it is done. ``time``: in seconds, when it was made."""

    def __init__(self, time: float | None = None):
        self._time = time

    def done(self):
        return True

    def wait(self):
        """Return at once."""

    def seconds_since(self, earlier):
        return self._time - earlier._time


DONE = HostMark()


def host_number(factor):
    """Return a factor as a number; it may be an array of one, or None for 1."""
    return 1.0 if factor is None else float(factor[0]) if isinstance(factor, np.ndarray) else factor


class HostOps(HostUpdate, HostNorm):
    """Operations on NumPy arrays."""

    records = False

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def address(self, x):
        return x.ctypes.data

    def pinned(self, shape, dtype):
        return np.zeros(shape, dtype)

    def upload(self, host, out):
        np.copyto(out, host, casting="unsafe")

    def to_host(self, x):
        return x.copy()

    def download(self, x, host):
        np.copyto(host, x)

    def fetch(self, x, host):
        np.copyto(host, x)

    def put(self, *values):
        for x, value in values:
            x[0] = value

    def typed(self, x, dtype):
        return x.reshape(-1).view(dtype)

    def memory(self):
        return None

    # ── mixed batches ─────────────────────────────────────────────────────────────────────────────────────────
    def paste_boxes(self, x_NHWC, source_NHWC, boxes_N4):
        for example, (top, left, height, width) in enumerate(boxes_N4.tolist()):
            box = np.s_[example, top : top + height, left : left + width]
            x_NHWC[box] = 0 if source_NHWC is None else source_NHWC[box]

    def mix_totals(self, a_3, b_3, totals_3, share):
        totals_3[0] += share * a_3[0] + (1 - share) * b_3[0]
        totals_3[1] += a_3[1] if share >= 0.5 else b_3[1]
        totals_3[2] += a_3[2]

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self):
        """Return at once."""

    def segment(self, key, run):
        return run()

    def mark(self, timed=False):
        return HostMark(perf_counter()) if timed else DONE

    def after(self, mark):
        """Return at once."""

    def beside(self):
        return self
