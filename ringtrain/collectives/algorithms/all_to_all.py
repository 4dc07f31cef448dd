"""The exchange of everybody with everybody: rank r has something for each rank, and ends with what each has for it.

Steps: 1. Bytes: each rank sends all but what is its own, in p - 1 messages: to rank r + 1 first, then to r + 2 and on,
so that nobody is hit by all at once.

The buffer is cut into 2p chunks. Chunk d is for rank d; chunk p + s is where that of rank s arrives. How long they are
differs from rank to rank, as long as both ends agree. Rank 1 of three::

    for 0   (for 1)   for 2  |  from 0   (from 1)   from 2

A rank has its own already: whoever wants it among the others copies it.
"""

from collections.abc import Iterator

from ringtrain.collectives.schedule import Move, Schedule, Step

ALL_TO_ALL = "all-to-all"


def all_to_all(size: int) -> Schedule:
    def steps(rank: int) -> Iterator[Step]:
        peers = [(rank + k) % size for k in range(1, size)]
        if peers:
            sends = tuple(Move(peer, peer, peer + 1) for peer in peers)
            yield Step(sends, tuple(Move(peer, size + peer, size + peer + 1) for peer in peers))

    return Schedule(ALL_TO_ALL, size, 2 * size, steps, lambda rank: size - 1, ALL_TO_ALL)
