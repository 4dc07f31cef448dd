"""Pieces of the arena, (start, stop) each, in order and disjoint: the elements that one rank updates."""

from collections.abc import Iterator, Sequence

from ringtrain.memory.spans import Span

Piece = tuple[int, int]


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the same elements in order, with neighbours joined and without empty pieces."""
    joined: list[Piece] = []
    for start, stop in sorted(piece for piece in pieces if piece[1] > piece[0]):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def cut(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """Yield the parts of the pieces within ``start:stop``."""
    for a, b in pieces:
        if max(a, start) < min(b, stop):
            yield max(a, start), min(b, stop)


def common(pieces: Sequence[Piece], others: Sequence[Piece]) -> list[Piece]:
    """Return the elements that are in both."""
    return [piece for a, b in others for piece in cut(pieces, a, b)]


def elements(pieces: Sequence[Piece]) -> int:
    return sum(stop - start for start, stop in pieces)


def trained_pieces(spans: Sequence[Span]) -> list[Piece]:
    """Return the pieces of the arena that are trained: running statistics have no gradient to clip, and frozen
    parameters do not count."""
    trained = (span for span in spans if span.parameter.role != "statistic" and not span.parameter.frozen)
    return join([(span.start, span.stop) for span in trained])
