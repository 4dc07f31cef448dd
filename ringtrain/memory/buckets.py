"""Buckets: the spans that are exchanged together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ringtrain.memory.spans import Span


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring spans, elements ``start:stop`` of the arena."""

    start: int
    stop: int
    spans: tuple[Span, ...]
    nbytes: int

    @property
    def frozen(self) -> bool:
        """Whether none of its parameters is trained."""
        return all(span.parameter.frozen for span in self.spans)

    @property
    def name(self) -> str:
        """ "conv1.weight to fc.bias": its first span and its last; empty if it has no spans."""
        if not self.spans:
            return ""
        first, last = self.spans[0].name, self.spans[-1].name
        return first if first == last else f"{first} to {last}"


def make_buckets(spans: Sequence[Span], itemsize: int, bucket_bytes: int) -> list[Bucket]:
    """Group whole spans into buckets of at least ``bucket_bytes``, the last one perhaps smaller, from the arena's end
    to its start: the order in which backward finishes them. Frozen spans before all trained ones, which backward does
    not reach, are in a bucket of their own."""
    buckets: list[Bucket] = []
    pending: list[Span] = []
    frozen = list(takewhile(lambda span: span.parameter.frozen, spans))
    for span in reversed(spans[len(frozen) :]):
        pending.insert(0, span)
        if (pending[-1].stop - pending[0].start) * itemsize >= bucket_bytes:
            buckets.append(_bucket(pending, itemsize))
            pending = []
    return [*buckets, *(_bucket(rest, itemsize) for rest in (pending, frozen) if rest)]


def _bucket(spans: list[Span], itemsize: int) -> Bucket:
    start, stop = spans[0].start, spans[-1].stop
    return Bucket(start, stop, tuple(spans), (stop - start) * itemsize)
