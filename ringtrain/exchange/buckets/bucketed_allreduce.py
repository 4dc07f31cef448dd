"""All-reduces of an array over the arena, one for each bucket.

A wire of 16 bits rounds numbers on their way, and so the sum: replicas stay equal, but not to one rank alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np

from ringtrain.allreduce.catalogue import AUTO, check_algorithm, make_allreduce
from ringtrain.allreduce.wire_formats import make_wire, warm_up
from ringtrain.arrays import Array
from ringtrain.collectives.execution.reduction import EmptyReduction, Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import or_nearest_over_messages
from ringtrain.exchange.buckets.ownership import executions
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import Piece
from ringtrain.humanize import format_bytes
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Span


class GradientReduction(ABC):
    """Sums the gradients of all ranks, bucket by bucket.

    header:         its addition to the run's header
    exact:          whether only the type itself rounds
    state_is_local: whether rank 0 holds its whole state
    required_names, optional_names: of the arrays in its state
    notes:          lines for the user, once it is bound
    tags:           how many its sums take, from 0 on, once it is bound
    """

    header, state_is_local = "", True
    tags: int
    exact: bool
    required_names: Collection[str] = ()
    optional_names: Collection[str] = ()
    notes: Sequence[str] = ()

    @abstractmethod
    def bind(self, spans: Sequence[Span], buffer: Array) -> Reducer:
        """Return the reducer of ``buffer``, a flat array over the arena of these spans. Collective."""

    @abstractmethod
    def rehearse(self) -> None:
        """Run every operation of a sum once, but those that an update rehearses."""

    def before(self, iteration: int) -> None:  # noqa: B027
        """Begin an iteration."""

    def state(self) -> dict:
        """Return what is kept from sum to sum. Collective."""
        return {}

    def restore(self, state: dict) -> None:  # noqa: B027
        """Take a state that :meth:`state` returned."""


class BucketedAllReduce(GradientReduction):
    """Prepares all-reduces as the options say, one for each bucket.

    ``streams``: of the network and of the sums. Raises UsageError for unknown names.
    """

    def __init__(self, settings: ExchangeSettings):
        config = settings.config
        self._settings, self._transport = settings, settings.transport
        self.streams, self.algorithm = stream_pair(settings.ops), config.algorithm
        self._wire = make_wire(config.wire, self.streams.exchange)
        self.exact = self._wire is None
        check_algorithm(config.algorithm, not self.exact)

    def bind(self, spans: Sequence[Span], buffer: Array, weights: bool = False, tag: int = 0) -> Reducer:
        """Return the reducer. Buckets of frozen spans are not sent, unless ``weights`` are summed in it too. ``tag``:
        the first that others leave."""
        buckets = self.buckets(spans, buffer.dtype)
        names = [b.name for b in buckets]
        pieces = [(b.start, b.start if b.frozen and not weights else b.stop) for b in buckets]
        self.tags = len(buckets)
        return self.make_reducer(buckets, self.prepare(buffer, pieces, tag, names))

    def make_reducer(self, buckets: Sequence[Bucket], sums: Sequence[Reduction]) -> Reducer:
        """Return the reducer of these sums."""
        config = self._settings.config
        return Reducer(buckets, sums, config.deadline_s, self.streams, early=config.overlap != "none")

    def buckets(self, spans: Sequence[Span], dtype: np.dtype) -> list[Bucket]:
        """Return the buckets, in the order in which they start."""
        return make_buckets(spans, dtype.itemsize, self._settings.config.bucket_bytes)

    def prepare(self, buffer: Array, pieces: Sequence[Piece], tag: int, names: Sequence[str] = ()) -> list[Reduction]:
        """Return the all-reduce of each slice of ``buffer``, under tags from ``tag`` on; ``names`` of the slices, for
        messages. ``notes`` are of the last call. Collective."""
        algorithm, note = or_nearest_over_messages(
            self._transport, buffer, self.algorithm, range(tag, tag + len(pieces))
        )
        named = zip(pieces, names or [""] * len(pieces), strict=True)
        sums = [self._prepare(algorithm, tag + i, buffer[a:b], name) for i, ((a, b), name) in enumerate(named)]
        self.notes = [note] if note else self._choices(pieces, sums, buffer.dtype.itemsize)
        return sums

    def gathers(self, gather: Schedule, buffer: Array, buckets: Sequence[Bucket], tag: int) -> list[Reduction]:
        """Return an all-gather of each of other buckets."""
        schedules = [gather] * len(buckets)
        return executions(self._settings, self.streams.exchange, schedules, buffer, buckets, tag, "all-gather")

    def _prepare(self, algorithm: str, tag: int, part: Array, name: str) -> Reduction:
        if not part.size:
            return EmptyReduction()
        return make_allreduce(
            self._transport,
            part,
            algorithm,
            self.streams.exchange.add,
            tag=tag,
            segment_bytes=self._settings.config.segment_bytes,
            device=self.streams.exchange,
            wire=self._wire,
            tuning=self._settings.tuning,
            guard=self._settings.guard,
            content=name,
        )

    def _choices(self, pieces: Sequence[Piece], sums: Sequence[Reduction], itemsize: int) -> list[str]:
        """Return a line for each algorithm that ``auto`` chose: its sizes, and the reason at the largest."""
        if self.algorithm != AUTO or self._transport.size == 1:
            return []
        by_name: dict[str, dict[int, str]] = {}
        for (start, stop), reduction in zip(pieces, sums, strict=True):
            if start == stop:
                continue
            name = reduction.algorithm.partition(":")[2]
            by_name.setdefault(name, {})[(stop - start) * itemsize] = reduction.why
        return [f"auto: {name} for {_sizes(reasons)}" for name, reasons in by_name.items()]

    def rehearse(self) -> None:
        if self._wire is not None:
            warm_up(self._wire, self.streams.exchange)


def _sizes(reasons: dict[int, str]) -> str:
    """ "1.5 MiB, 4 MiB (measured 1.2 ms; mpi 1.5 ms)" """
    sizes = sorted(reasons)
    words, why = [format_bytes(size) for size in sizes], reasons[sizes[-1]]
    if len(sizes) == 1:
        return f"{words[0]} ({why})"
    every = ", ".join(words) if len(sizes) < 4 else f"{words[0]} to {words[-1]}"
    return f"{every} (at {words[-1]}: {why})"
