"""Buckets: the spans that are exchanged together."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.nn.base import Span


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring spans, elements ``start:stop`` of the arena."""

    start: int
    stop: int
    spans: tuple[Span, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """ "conv1.weight to fc.bias": its first span and its last; empty if it has no spans."""
        if not self.spans:
            return ""
        first, last = self.spans[0].name, self.spans[-1].name
        return first if first == last else f"{first} to {last}"


def make_buckets(spans: Sequence[Span], itemsize: int, bucket_bytes: int) -> list[Bucket]:
    """Group whole spans into buckets of at least ``bucket_bytes``, the last one perhaps smaller, from the arena's end
    to its start: the order in which backward finishes them.
    """
    buckets: list[Bucket] = []
    held: list[Span] = []
    for span in reversed(spans):
        held.insert(0, span)
        if (held[-1].stop - held[0].start) * itemsize >= bucket_bytes:
            buckets.append(_bucket(held, itemsize))
            held = []
    return [*buckets, _bucket(held, itemsize)] if held else buckets


def _bucket(spans: list[Span], itemsize: int) -> Bucket:
    start, stop = spans[0].start, spans[-1].stop
    return Bucket(start, stop, tuple(spans), (stop - start) * itemsize)
