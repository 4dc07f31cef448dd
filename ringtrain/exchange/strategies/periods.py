"""When averaging exchanges: the parts of the weights that take turns, and the iterations of their turns."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError
from ringtrain.memory.buckets import Bucket

UNITS = 8  # buckets that a fragment has, about


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of the fragments, as long as one another, whose ends are spread evenly."""

    every: int  # iterations of a period
    fragments: int = 1  # number of them
    delay: int = 0  # iterations from the end of a fragment's period until its sum arrives, less than ``every``
    begin: int = 0  # the first iteration of the first periods

    def leaving(self, iteration: int) -> list[int]:
        """Return the fragments whose period ends with this iteration."""
        passed = iteration + 1 - self.begin
        ends = [(number + 1) * self.every // self.fragments for number in range(self.fragments)]
        return [number for number, end in enumerate(ends) if passed > 0 and (passed - end) % self.every == 0]

    def arriving(self, iteration: int) -> list[int]:
        """Return the fragments whose sum arrives with this iteration."""
        return self.leaving(iteration - self.delay)


def periods_of(config: ExchangeConfig) -> Periods:
    """Return the periods of a configuration. Raises ConfigError for a delay that is no part of one."""
    if config.average_delay >= config.average_every:
        raise ConfigError(
            f"--average-delay {config.average_delay} is not less than --average-every {config.average_every}: a sum "
            "has to arrive before the next one leaves. Give a smaller delay, or a longer period"
        )
    return Periods(config.average_every, config.fragments, config.average_delay, config.average_from)


def unit_bytes(nbytes: int, config: ExchangeConfig) -> int:
    """Return the bytes of a bucket of which fragments of nearly equal size can be made; ``nbytes``: of all weights.
    They do not depend on ``--bucket-bytes``: a checkpoint has the sums under way by fragment."""
    return config.bucket_bytes if config.fragments == 1 else max(1, nbytes // (UNITS * config.fragments))


def divide(buckets: Sequence[Bucket], fragments: int, setter: str = "") -> list[list[int]]:
    """Return the indices of each fragment's buckets: each bucket in turn goes to the fragment with the fewest bytes, so
    that each has layers of all depths. ``setter``: of the number, for the error. Raises ConfigError for more fragments
    than buckets."""
    if fragments > len(buckets):
        raise ConfigError(
            f"--fragments {fragments}{setter} divides whole parameters, and this model has {len(buckets)} that are "
            f"large enough to travel alone: give --fragments {len(buckets)} or fewer"
        )
    parts: list[list[int]] = [[] for _ in range(fragments)]
    sizes = [0] * fragments
    for index, bucket in enumerate(buckets):
        least = sizes.index(min(sizes))
        parts[least].append(index)
        sizes[least] += bucket.nbytes
    return parts
