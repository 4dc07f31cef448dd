"""Composition of schedules: one after another, and a group's schedule among the ranks of a world.

Composed schedules are proved like all others: nothing here needs to be trusted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, Move, Owner, Schedule, Step, without_owner

Span = tuple[int, int]
ChunkSpans = Sequence[Sequence[Span]]


def all_reduce(name: str, scatter: Schedule, gather: Schedule) -> Schedule:
    """Return a reduce-scatter followed by its all-gather: an all-reduce."""
    return concat(name, [scatter, gather])


def chunk_a_rank(name: str, size: int, steps: Callable, goal: str, owner: Owner = lambda chunk: chunk) -> Schedule:
    """Return a half of an all-reduce with as many chunks as ranks, in which a rank sends all chunks but its own."""
    return Schedule(name, size, size, steps, lambda rank: size - 1, goal, owner)


def rounded(gather: Schedule) -> Schedule:
    """Return an all-gather for a wire format that rounds: first each owner rounds its own chunks as the wire rounds all
    other copies. Rounding again changes nothing, so that all ranks end with the same bits."""

    def steps(rank: int) -> Iterator[Step]:
        moves = tuple(Move(rank, i, i + 1) for i in range(gather.chunks) if gather.owner(i) == rank)
        if moves:
            yield Step(moves, moves)

    first = Schedule("rounding", gather.size, gather.chunks, steps, lambda rank: 0)
    return concat(gather.name, [first, gather], ALL_GATHER, gather.owner)


def concat(name: str, parts: Sequence[Schedule], goal: str = ALL_REDUCE, owner: Owner = without_owner) -> Schedule:
    """Return the parts one after the other, for each rank. The parts have the same ranks and the same chunks."""

    def steps(rank: int) -> Iterator[Step]:
        for part in parts:
            yield from part.make(rank)

    def wire(rank: int) -> int:
        return sum(part.max_chunks_sent(rank) for part in parts)

    return replace(parts[0], name=name, make=steps, max_chunks_sent=wire, goal=goal, owner=owner)


def relabelled(part: Schedule, ranks: Sequence[int]) -> Schedule:
    """Return the half of an all-reduce with its ranks renamed: rank r of ``part`` is rank ``ranks[r]``."""
    chunk_spans = [[(chunk, chunk + 1)] for chunk in range(part.chunks)]
    embedded = embed(part, ranks, chunk_spans, part.size, part.chunks)
    return replace(embedded, goal=part.goal, owner=lambda chunk: ranks[part.owner(chunk)])


def from_root(gather: Schedule, root: int) -> Schedule:
    """Return an all-gather as a broadcast: first the root sends their chunks to the other owners."""

    def steps(rank: int) -> Iterator[Step]:
        chunks = [chunk for chunk in range(gather.chunks) if gather.owner(chunk) != root]
        if rank == root and chunks:
            yield Step(sends=tuple(Move(gather.owner(chunk), chunk, chunk + 1) for chunk in chunks))
        taken = tuple(Move(root, chunk, chunk + 1) for chunk in chunks if gather.owner(chunk) == rank)
        if taken:
            yield Step(recvs=taken)

    def wire(rank: int) -> int:
        return sum(gather.owner(chunk) != root for chunk in range(gather.chunks)) if rank == root else 0

    first = Schedule("dealing", gather.size, gather.chunks, steps, wire)
    return concat(gather.name, [first, gather], ALL_GATHER, lambda chunk: root)


def embed(part: Schedule, ranks: Sequence[int], chunk_spans: ChunkSpans, size: int, chunks: int) -> Schedule:
    """Return ``part``, run by ``ranks`` in a world of ``size`` ranks, whose buffer has ``chunks`` chunks. The other
    ranks take no part. Chunk c of ``part`` is the world's chunks ``chunk_spans[c]``: one move becomes several if
    those are not neighbours, and none if there are none."""
    inner_rank = {rank: number for number, rank in enumerate(ranks)}

    def moved(moves: tuple[Move, ...]) -> tuple[Move, ...]:
        return tuple(
            Move(ranks[move.peer], start, stop, move.add)
            for move in moves
            for start, stop in _spans(move, part.chunks, chunk_spans, chunks)
        )

    def steps(rank: int) -> Iterator[Step]:
        if rank in inner_rank:
            for step in part.make(inner_rank[rank]):
                yield Step(moved(step.sends), moved(step.recvs))

    widths = [sum(stop - start for start, stop in spans) for spans in chunk_spans]

    def wire(rank: int) -> int:
        if rank not in inner_rank:
            return 0
        if min(widths) == max(widths):
            return widths[0] * part.max_chunks_sent(inner_rank[rank])
        # The bound counts chunks, and here one is wider than another: count the chunks that this rank sends.
        return sum(m.stop - m.start for step in steps(rank) for m in step.sends if m.peer != rank)

    return Schedule(part.name, size, chunks, steps, wire)


def _spans(move: Move, inner: int, chunk_spans: ChunkSpans, chunks: int) -> list[Span]:
    """Return the spans of a move's chunks in the world, with neighbours joined. ``inner`` and ``chunks``: the number of
    chunks of the part and of the world; scratch stays the same number of buffers further on."""
    shift = move.start // inner * chunks
    spans: list[Span] = []
    for chunk in range(move.start, move.stop):
        for start, stop in chunk_spans[chunk % inner]:
            if spans and spans[-1][1] == start + shift:
                start = spans.pop()[0] - shift
            spans.append((start + shift, stop + shift))
    return spans
