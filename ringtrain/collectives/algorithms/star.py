"""The star all-reduce: rank 0 adds the buffers of all ranks and sends the sum back. It is the parameter server of the
textbooks.

Steps: p for p ranks. Bytes: a leaf sends n; the root sends, and receives, (p - 1)n. The root's link carries all bytes,
so the time grows with p: it is here as a comparison, and for two ranks on one wire it is as good as any.

1.  Every leaf sends its whole buffer to the root. The root adds them one after the other, in the order of ranks, so
    that the sum does not depend on the order of arrival.
2.  The root sends the sum to every leaf, which overwrites its buffer by it.

Four ranks::

        1   2   3              1   2   3
         \\  |  /                ^  ^  ^
          v v v                  \\ | /
            0   ((0+1)+2)+3        0

The sum is made once, on the root, and then copied, so that all ranks hold the same bits.

Source: textbook; the aggregation of a single parameter server, and of DataParallel's master GPU.
"""

from ringtrain.collectives.algorithms.rooted import broadcast_from_root, reduce_to_root
from ringtrain.collectives.schedule import Schedule

ROOT = 0


def reduce(size: int) -> Schedule:
    """Return the first half of the all-reduce: the root ends with the sum."""
    return reduce_to_root(ROOT, range(size), size, "star-reduce")


def broadcast(size: int) -> Schedule:
    """Return the second half of the all-reduce: all ranks end with the buffer of the root."""
    return broadcast_from_root(ROOT, range(size), size, "star-broadcast")
