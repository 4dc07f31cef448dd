"""Slows a rank k times, to measure strategies with a slow rank.

Before each micro-batch it sleeps k - 1 times the seconds that it has computed since the last one. Its core is free
meanwhile, so no other rank is slower.
"""

import time
from collections.abc import Callable, Sequence

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.errors import ConfigError
from ringtrain.nn.workspace import Workspace
from ringtrain.train.step.input import DeviceInput
from ringtrain.transport.waiting import peers


class SlowedInput:
    """The input of a rank that is ``times`` slower. ``worked()``: its seconds of computing."""

    def __init__(
        self,
        feed: DeviceInput,
        times: float,
        worked: Callable[[], float] = time.thread_time,
        rest: Callable[[float], None] = time.sleep,
    ):
        self._feed, self._times, self._worked, self._rest = feed, times, worked, rest
        self._before = worked()

    def load(self, space: Workspace, batch: Batch, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Sleep, then do as :meth:`ringtrain.train.step.input.DeviceInput.load`."""
        self._rest((self._times - 1) * (self._worked() - self._before))
        self._before = self._worked()
        return self._feed.load(space, batch, start, stop)

    def partner_labels(self, space: Workspace, batch: Batch, start: int, stop: int) -> Array | None:
        return self._feed.partner_labels(space, batch, start, stop)

    def ahead(self, batch: Batch) -> None:
        self._feed.ahead(batch)

    def arrive(self, batch: Batch) -> None:
        self._feed.arrive(batch)


Feed = DeviceInput | SlowedInput


def slowed(feed: DeviceInput, slow: str | None, rank: int, trainers: Sequence[int]) -> Feed:
    """The input of this rank; ``slow``: RANK:TIMES or None. Raises ConfigError unless it names one of ``trainers``, the
    ranks that have examples."""
    if slow is None:
        return feed
    which, times = _parsed(slow)
    if which not in trainers:
        raise ConfigError(
            f"--inject-slowdown {slow} slows rank {which}, and the examples are on {peers(trainers)}: name one of those"
        )
    return SlowedInput(feed, times) if which == rank else feed


def _parsed(slow: str) -> tuple[int, float]:
    try:
        rank, times = slow.split(":")
        which, factor = int(rank), float(times)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 1000:
        raise ConfigError(f"--inject-slowdown is {slow!r}; it wants RANK:TIMES, with 1 to 1000 times, such as 1:2")
    return which, factor
