"""The star all-reduce: rank 0 adds everybody's buffer and sends the sum back. The parameter server of the
textbooks.

Steps: p for p ranks. Bytes: a leaf sends n; the root sends, and receives, (p - 1)n. The root's link carries
it all, so the time grows with p: it is here to be compared with, and for two ranks on one wire it is as good
as any.

1.  Every leaf sends its whole buffer to the root. The root adds them one after the other, in the order of
    ranks, so that the sum does not depend on who is early.
2.  The root sends the sum to every leaf, which overwrites its buffer by it.

Four ranks::

        1   2   3              1   2   3
         \\  |  /                ^  ^  ^
          v v v                  \\ | /
            0   ((0+1)+2)+3        0

The sum is made once, on the root, and then copied, so that all ranks hold the same bits.

Source: textbook; the aggregation of a single parameter server, and of DataParallel's master GPU.
"""

from collections.abc import Iterator

from ringtrain.collectives.schedule import Move, Schedule, Step

ROOT = 0


def star(size: int) -> Schedule:
    """All-reduce through rank 0."""
    leaves = range(1, size)

    def steps(rank: int) -> Iterator[Step]:
        if rank != ROOT:
            yield Step(sends=(Move(ROOT, 0, 1),))
            yield Step(recvs=(Move(ROOT, 0, 1),))
            return
        # One step a leaf: additions into one span are ordered by steps, and by nothing else.
        for leaf in leaves:
            yield Step(recvs=(Move(leaf, 0, 1, add=True),))
        if leaves:
            yield Step(sends=tuple(Move(leaf, 0, 1) for leaf in leaves))

    return Schedule("star", size, 1, steps, wire=lambda rank: len(leaves) if rank == ROOT else 1)
