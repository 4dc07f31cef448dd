"""The iteration of each strategy: layers, update, and the exchanges that nothing hides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ringtrain.collectives.catalogue import HALVES
from ringtrain.collectives.schedule import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from ringtrain.collectives.topology import Topology
from ringtrain.memory.buckets import Bucket
from ringtrain.plan.exchange_times import ExchangeTime, ExchangeTimes
from ringtrain.plan.iteration import MOST_ROUNDS, backward_of, exposed_s
from ringtrain.plan.layer_times import RankTimes

AVERAGE_MOVES = 6  # arrays that are read or written for one that is averaged
UPDATE_MOVES = 3  # of weights and gradients for an update, beside two of each array of the optimizer's state


@dataclass(frozen=True, slots=True)
class IterationShare:
    """Seconds of an iteration: layers, the update, exchanges that nothing hides. state_share: of the bytes of weights,
    gradients and the optimizer's state, those that a rank holds"""

    compute_s: float
    update_s: float
    exposed_s: float
    state_share: float = 1.0

    @property
    def seconds(self) -> float:
        return self.compute_s + self.update_s + self.exposed_s


@dataclass(frozen=True, slots=True)
class PlannedRank:
    """A rank among others. overlaps: exchanges begin during backward; streams: no core is needed for them"""

    times: RankTimes
    buckets: Sequence[Bucket]
    topology: Topology
    exchanges: ExchangeTimes
    algorithm: str
    state_arrays: int  # of the optimizer, each as long as the weights
    average_every: int
    overlaps: bool
    streams: bool

    def times_of(self, goal: str = ALL_REDUCE) -> list[ExchangeTime]:
        return [self.exchanges.time(self.algorithm, self.topology, bucket.nbytes, goal) for bucket in self.buckets]

    def exposed_s(self, overlaps: bool) -> float:
        return exposed_s(backward_of(self.times, self.buckets), self.times_of(), overlaps, self.streams)

    def there_and_back_s(self, inward: str, outward: str, most_rounds: int = MOST_ROUNDS) -> float:
        """Seconds by which sums at owners and the weights that these send back lengthen an iteration, each in a
        direction of the link."""
        sums, weights = (
            [replace(each, rounds=min(each.rounds, most_rounds)) for each in self.times_of(goal)]
            for goal in (REDUCE_SCATTER, ALL_GATHER)
        )
        backward = backward_of(self.times, self.buckets)
        return exposed_s(backward, sums, self.overlaps, self.streams, weights, (inward, outward))

    def share(self, update_s: float, exposed: float, state_share: float = 1.0) -> IterationShare:
        return IterationShare(self.times.compute_s, update_s, exposed, state_share)


def allreduce(rank: PlannedRank) -> IterationShare:
    return rank.share(rank.times.update_s, rank.exposed_s(rank.overlaps))


def sharded(rank: PlannedRank) -> IterationShare:
    """Sums scattered over ranks, each updates its share, weights gathered: both use both directions of a link."""
    size, arrays = rank.topology.size, rank.state_arrays
    return rank.share(rank.times.update_s / size, rank.there_and_back_s("", ""), (2 + arrays / size) / (2 + arrays))


def server(rank: PlannedRank) -> IterationShare:
    """Sums at one rank, which updates and sends weights back: into its link, and out of it. All messages of a bucket
    leave at once."""
    return rank.share(rank.times.update_s, rank.there_and_back_s("in", "out", most_rounds=1))


def averaging(rank: PlannedRank) -> IterationShare:
    """Each rank updates by its own gradient; every so many iterations weights and the optimizer's state are averaged,
    each by a copy, a multiplication and a copy beside its sum: they move memory as the update does."""
    moved = AVERAGE_MOVES / (UPDATE_MOVES + 2 * rank.state_arrays) * rank.times.update_s
    each = rank.exposed_s(overlaps=False) + moved if rank.topology.size > 1 else 0.0
    return rank.share(rank.times.update_s, (1 + rank.state_arrays) * each / rank.average_every)


STRATEGIES: dict[str, Callable[[PlannedRank], IterationShare]] = {
    "allreduce": allreduce,
    "sharded": sharded,
    "server": server,
    "averaging": averaging,
}
IN_HALVES = ("sharded", "server")  # their exchanges are a reduce-scatter and an all-gather
ALGORITHM = {"server": "star"}  # of a strategy that has one alone


def algorithms_of(strategy: str, suiting: Sequence[str]) -> list[str]:
    """Return the algorithms with which the strategy works."""
    if strategy in ALGORITHM:
        return [name for name in suiting if name == ALGORITHM[strategy]]
    return [name for name in suiting if name in HALVES] if strategy in IN_HALVES else list(suiting)
