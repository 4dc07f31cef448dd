"""The program of a streamed all-reduce: what a rank does with each chunk of its array, and for what it waits.

The array goes through a small window in chunks. A rank has a few slots there, which it writes and the others read, and
three counters that only grow, of chunks in their order: those that it has *published*, those of which it has *summed*
its part, and those with which it is *done*. Chunks are counted on from call to call.

=================  ===================================  =============================  ======================  =========
action             waits until                          reads, of other ranks' slots   writes in its slot      then
=================  ===================================  =============================  ======================  =========
``publish``        every rank is done with what is in                                  its chunk               published
                   a slot: the chunk goes there
``publish others`` the same                                                            all slices but its own  published
``sum``            every rank has published the chunk   all                                                    done
``sum own``        every rank has published the chunk   its own slice                  the sum of its slice    summed
``copy others``    every rank has summed the chunk      the sums of the other slices                           done
=================  ===================================  =============================  ======================  =========

Where the kernel reads another rank's memory (``ONCE``), a rank publishes where its array lies, in no slot; the others
copy their parts from there; and it leaves when all have.

The other collectives are the first program with less in it: a rank publishes a part of its chunk, or a piece of it for
each rank, or nothing, and in the place of ``sum`` it adds or copies some of the others' slots, or none. What orders all
accesses orders fewer.

``sum`` and ``sum own`` add contributions in the order of ranks: all ranks get the same bits, by either program.

A rank takes the actions on a chunk one after another, and an action on one chunk after another. Any order beyond that
will do, as :mod:`tests.collectives.stream_proof` shows: a rank may publish as far ahead as it has slots. The
compiled call (ops/cpu/sources/streamed.cpp) takes the order that is fastest at the moment.
"""

from typing import NamedTuple

PUBLISH, PUBLISH_OTHERS, SUM, SUM_OWN, COPY_OTHERS = "publish", "publish others", "sum", "sum own", "copy others"
PUBLISH_ARRAY, COPY_ARRAYS, LEAVE = "publish array", "copy arrays", "leave"
PUBLISHED, SUMMED, DONE = "published", "summed", "done"


class StreamAction(NamedTuple):
    """What a rank does with a chunk. awaits: the counter in which every rank must have the chunk; "": it awaits a slot;
    advances: its own counter, in which it has the chunk then"""

    name: str
    awaits: str
    advances: str


Program = tuple[StreamAction, ...]

# Each rank adds whole chunks: one wait a chunk, and every rank reads all the others' contributions.
WHOLE = (StreamAction(PUBLISH, "", PUBLISHED), StreamAction(SUM, PUBLISHED, DONE))
# Each rank adds a slice of each chunk: two waits, and a rank reads 2(p-1)/p chunks in place of p - 1.
SLICED = (
    StreamAction(PUBLISH_OTHERS, "", PUBLISHED),
    StreamAction(SUM_OWN, PUBLISHED, SUMMED),
    StreamAction(COPY_OTHERS, SUMMED, DONE),
)
# One copy by the kernel, from array to array.
ONCE = (
    StreamAction(PUBLISH_ARRAY, "", PUBLISHED),
    StreamAction(COPY_ARRAYS, PUBLISHED, SUMMED),
    StreamAction(LEAVE, SUMMED, DONE),
)
