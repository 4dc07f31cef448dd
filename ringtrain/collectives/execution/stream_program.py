"""The program of a streamed all-reduce: what a rank does with each chunk of its array, and for what it waits.

The array goes through a small window in chunks. A rank has a few slots there, which it writes and the others read, and
two counters that only grow: *published*, the chunks in its slots, and *summed*, the chunks of which it has added its
slice. Chunks are counted on from call to call; chunk k lies in slot k modulo the number of slots.

=================  ============================================  =============================  ===================
action             waits until every rank has                    reads, of other ranks' slots   writes in its slot
=================  ============================================  =============================  ===================
``publish``                                                                                     its chunk
``publish others``                                                                              all slices but its own
``sum``            published the chunk                           all
``sum own``        published the chunk                           its own slice                  the sum of its slice
``copy others``    summed the chunk                              the sums of the other slices
=================  ============================================  =============================  ===================

``sum`` and ``sum own`` add contributions in the order of ranks: all ranks get the same bits, by either program.

A program is a list of actions for each chunk k, with how far ahead of k each one works: a rank publishes chunk k + 1
before it waits for chunk k. No further counter says when a slot may be written again: it follows from these waits, as
:mod:`ringtrain.collectives.proof.stream_proof` shows. The compiled call (ops/cpu/sources/streamed.cpp) runs the program
as it is given.
"""

from typing import NamedTuple

PUBLISH, PUBLISH_OTHERS, SUM, SUM_OWN, COPY_OTHERS = ACTIONS = (
    "publish",
    "publish others",
    "sum",
    "sum own",
    "copy others",
)
SLOTS = 4


class Instruction(NamedTuple):
    """An action on chunk k + ``ahead``."""

    action: str
    ahead: int


# Each rank adds whole chunks: one wait a chunk, and every rank reads all the others' contributions.
WHOLE = (Instruction(PUBLISH, 1), Instruction(SUM, 0))
# Each rank adds a slice of each chunk: two waits, and a rank reads 2(p-1)/p chunks in place of p - 1.
SLICED = (Instruction(PUBLISH_OTHERS, 1), Instruction(SUM_OWN, 0), Instruction(COPY_OTHERS, 0))


def actions_of(program: tuple[Instruction, ...], chunks: int) -> list[tuple[str, int]]:
    """Return (action, chunk) of a rank, in its order, for an array of so many chunks."""
    return [(action, k + ahead) for k in range(-1, chunks) for action, ahead in program if 0 <= k + ahead < chunks]
