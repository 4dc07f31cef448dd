"""Slows a rank k times, to measure strategies with a slow rank.

Before each micro-batch it sleeps k - 1 times the seconds that it has computed since the last one. Its core is free
meanwhile, so no other rank is slower.
"""

import time
from collections.abc import Callable, Sequence

from ringtrain.errors import ConfigError
from ringtrain.transport.waiting import peers


class Pause:
    """The rest of a rank that is ``times`` slower, before it loads a micro-batch. ``worked()``: its seconds of
    computing."""

    def __init__(
        self,
        times: float,
        worked: Callable[[], float] = time.thread_time,
        rest: Callable[[float], None] = time.sleep,
    ):
        self._times, self._worked, self._rest = times, worked, rest
        self._before = worked()

    def __call__(self) -> None:
        self._rest((self._times - 1) * (self._worked() - self._before))
        self._before = self._worked()


def pause_of(slow: str | None, rank: int, trainers: Sequence[int]) -> Pause | None:
    """The pause of this rank; ``slow``: RANK:TIMES or None. Raises ConfigError unless it names one of ``trainers``, the
    ranks that have examples."""
    if slow is None:
        return None
    try:
        text, factor = slow.split(":")
        which, times = int(text), float(factor)
    except ValueError:
        times = 0.0
    if not 1 <= times <= 1000:
        raise ConfigError(f"--inject-slowdown is {slow!r}; it wants RANK:TIMES, with 1 to 1000 times, such as 1:2")
    if which not in trainers:
        raise ConfigError(
            f"--inject-slowdown {slow} slows rank {which}, and the examples are on {peers(trainers)}: name one of those"
        )
    return Pause(times) if which == rank else None
