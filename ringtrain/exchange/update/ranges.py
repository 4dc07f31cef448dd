"""Pieces of the arena, (start, stop) each, in order and apart from one another: what one rank updates."""

from collections.abc import Iterator, Sequence

Piece = tuple[int, int]


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """The same elements, neighbours joined, in order, and nothing empty."""
    joined: list[Piece] = []
    for start, stop in sorted(piece for piece in pieces if piece[1] > piece[0]):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def cut(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """What of the pieces lies within ``start:stop``."""
    for a, b in pieces:
        if max(a, start) < min(b, stop):
            yield max(a, start), min(b, stop)


def common(pieces: Sequence[Piece], others: Sequence[Piece]) -> list[Piece]:
    """What lies in both."""
    return [piece for a, b in others for piece in cut(pieces, a, b)]


def elements(pieces: Sequence[Piece]) -> int:
    return sum(stop - start for start, stop in pieces)
