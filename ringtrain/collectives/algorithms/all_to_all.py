"""The all-to-all exchange: each rank sends a different chunk to each other rank.

Steps: 1. Bytes: each rank sends all chunks but its own, in p - 1 messages: to rank r + 1 first, then to r + 2 and on,
so that the messages to one rank are spread out.

The buffer is cut into 2p chunks. Chunk d goes to rank d; chunk p + s receives the chunk of rank s. Chunks may have
different lengths on different ranks, as long as both ends of a message agree. Rank 1 of three::

    for 0   (for 1)   for 2  |  from 0   (from 1)   from 2

A rank does not send its own chunk to itself: the caller copies it where it is needed.
"""

from collections.abc import Iterator

from ringtrain.collectives.schedule import Move, Schedule, Step

ALL_TO_ALL = "all-to-all"


def all_to_all(size: int) -> Schedule:
    """Return the schedule of an all-to-all exchange among ``size`` ranks."""

    def steps(rank: int) -> Iterator[Step]:
        peers = [(rank + k) % size for k in range(1, size)]
        if peers:
            sends = tuple(Move(peer, peer, peer + 1) for peer in peers)
            yield Step(sends, tuple(Move(peer, size + peer, size + peer + 1) for peer in peers))

    return Schedule(ALL_TO_ALL, size, 2 * size, steps, lambda rank: size - 1, ALL_TO_ALL)
