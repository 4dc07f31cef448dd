"""Schedules made of schedules: one after another, and a group's schedule among the ranks of a world.

Whatever is composed is proved like anything else: nothing here has to be trusted.
"""

from collections.abc import Iterator, Sequence

from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, Move, Schedule, Step

Span = tuple[int, int]


def all_reduce(name: str, scatter: Schedule, gather: Schedule) -> Schedule:
    """A reduce-scatter, then the all-gather of what it made: an all-reduce."""
    return concat(name, [scatter, gather])


def rounded(gather: Schedule) -> Schedule:
    """An all-gather for a wire that rounds: first every owner does to its own chunks what the wire will do to all other
    copies of them. To round again changes nothing, so that all ranks end with the same bits."""

    def steps(rank: int) -> Iterator[Step]:
        own = tuple(Move(rank, i, i + 1) for i in range(gather.chunks) if gather.owner(i) == rank)
        if own:
            yield Step(own, own)

    first = Schedule("rounding", gather.size, gather.chunks, steps, lambda rank: 0)
    return concat(gather.name, [first, gather], ALL_GATHER, gather.owner)


def concat(name: str, parts: Sequence[Schedule], goal: str = ALL_REDUCE, owner=None) -> Schedule:
    """One part after the other, for each rank. The parts have the same ranks and the same chunks."""

    def steps(rank: int) -> Iterator[Step]:
        for part in parts:
            yield from part.make(rank)

    first = parts[0]
    return Schedule(name, first.size, first.chunks, steps, lambda rank: _total(parts, rank), goal, owner, first.lanes)


def _total(parts: Sequence[Schedule], rank: int) -> int:
    return sum(part.wire(rank) for part in parts)


def embed(part: Schedule, ranks: Sequence[int], places: Sequence[Sequence[int]], size: int, chunks: int) -> Schedule:
    """``part``, carried out by ``ranks`` in a world of ``size`` ranks, whose buffer has ``chunks`` chunks; nobody
    else takes part. Chunk c of ``part`` is the world's chunks ``places[c]``; where those are no neighbours, one
    move becomes several, and where there are none it vanishes."""
    seats = {rank: seat for seat, rank in enumerate(ranks)}

    def moved(moves: tuple[Move, ...]) -> tuple[Move, ...]:
        return tuple(
            Move(ranks[move.peer], start, stop, move.add)
            for move in moves
            for start, stop in _spans(move, part.chunks, places, chunks)
        )

    def steps(rank: int) -> Iterator[Step]:
        if rank in seats:
            for step in part.make(seats[rank]):
                yield Step(moved(step.sends), moved(step.recvs))

    widths = [sum(stop - start for start, stop in place) for place in places]

    def wire(rank: int) -> int:
        if rank not in seats:
            return 0
        if min(widths) == max(widths):
            return widths[0] * part.wire(seats[rank])
        # The bound counts chunks, and here one is wider than another: count what this rank is to send.
        return sum(m.stop - m.start for step in steps(rank) for m in step.sends if m.peer != rank)

    return Schedule(part.name, size, chunks, steps, wire)


def _spans(move: Move, inner: int, places: Sequence[Sequence[Span]], chunks: int) -> list[Span]:
    """Where the chunks of a part's move lie in the world, neighbours joined. ``inner`` and ``chunks``: how many
    chunks the part and the world have; scratch stays the same number of buffers further on."""
    shift = move.start // inner * chunks
    spans: list[Span] = []
    for chunk in range(move.start, move.stop):
        for start, stop in places[chunk % inner]:
            if spans and spans[-1][1] == start + shift:
                start = spans.pop()[0] - shift
            spans.append((start + shift, stop + shift))
    return spans
