"""The critical path of one iteration of a rank: layers, buckets, and exchanges beside them.

::
    core       forward ─► loss ─► backward fc │ conv2 │ conv1 ─► waits ─► update
                                              ▲ looks ▲ at the exchanges under way
    network                                   bucket 0: round, round ..., bucket 1 ...

A bucket's exchange begins when backward has finished its first layer. What an exchange costs the core (messages within
a node, additions) adds up with the layers. Rounds between nodes travel meanwhile, one bucket's behind another's on the
node's link; a round follows when the core looks, after each layer, and at once where a device has streams of its own
or the core waits. Messages and layers slow each other: the clock is the layers', beside which messages
travel at another rate than alone, and what messages cost the core comes on top. Where an owner updates a bucket, its
weights leave when its sum is there, after backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtrain.memory.buckets import Bucket
from ringtrain.plan.exchange_times import ExchangeTime
from ringtrain.plan.layer_times import RankTimes

MOST_ROUNDS = 64  # of an exchange that are looked at one by one; more are joined


@dataclass(frozen=True, slots=True)
class BackwardTimes:
    """The moments of backward on the core, in seconds from the begin of an iteration: after each layer, in their order;
    when each bucket is final; its end."""

    looks: tuple[float, ...]
    ready: tuple[float, ...]
    end: float


def backward_of(times: RankTimes, buckets: Sequence[Bucket]) -> BackwardTimes:
    """Return the moments for these buckets, which are from the arena's end to its start."""
    clock = times.beside_s + sum(layer.forward_s for layer in times.layers)
    done, looks = dict[str, float](), []
    for layer in reversed(times.layers):
        clock += layer.backward_s
        done[layer.name] = clock
        looks.append(clock)
    ready, latest = [], 0.0
    for bucket in buckets:  # they start in this order
        latest = max([latest, *(done.get(span.name.rpartition(".")[0], clock) for span in bucket.spans)])
        ready.append(latest)
    return BackwardTimes(tuple(looks), tuple(ready), clock)


def whole_iterations(times: RankTimes, buckets: int, iterations: int = 1) -> BackwardTimes:
    """Return the moments of so many iterations' layers, forward and backward, for buckets that are ready before."""
    layers, looks, clock = times.layers, list[float](), 0.0
    for _ in range(iterations):
        clock += times.beside_s
        for seconds in (*(layer.forward_s for layer in layers), *(layer.backward_s for layer in reversed(layers))):
            clock += seconds
            looks.append(clock)
    return BackwardTimes(tuple(looks), (0.0,) * buckets, clock)


@dataclass(frozen=True, slots=True)
class Leg:
    """An exchange of a bucket, not before the moment ``earliest``, over one of the directions of the node's link."""

    earliest: float
    exchange: ExchangeTime
    direction: str = ""

    @property
    def rounds(self) -> int:
        return min(self.exchange.rounds, MOST_ROUNDS)


def exposed_s(
    backward: BackwardTimes,
    sums: Sequence[ExchangeTime],
    overlaps: bool,
    streams: bool = False,
    weights: Sequence[ExchangeTime] = (),
    directions: tuple[str, str] = ("", ""),
) -> float:
    """Return the seconds by which exchanges of the buckets lengthen an iteration.

    overlaps:   whether they begin during backward
    streams:    whether they need no look of the core, as on a device
    weights:    of sums at owners: the exchanges that send their weights back, after backward
    directions: those that sums and weights take
    """
    begins = backward.ready if overlaps else [backward.end] * len(sums)
    buckets = [[Leg(*pair, directions[0])] for pair in zip(begins, sums, strict=True)]
    for legs, exchange in zip(buckets, weights, strict=False):
        legs.append(Leg(backward.end, exchange, directions[1]))
    if streams:
        ended, _ = _ended_s([[_all_between(leg) for leg in legs] for legs in buckets], backward.end, ())
        return max(ended - backward.end, 0.0)
    busy = sum(leg.exchange.busy_s for legs in buckets for leg in legs)
    ended, core = _ended_s(buckets, backward.end, backward.looks)
    return busy + max(ended - backward.end, 0.0) + core


def _all_between(leg: Leg) -> Leg:
    """The leg with an exchange that keeps no core busy."""
    return replace(leg, exchange=ExchangeTime(0.0, leg.exchange.seconds, max(1, leg.exchange.rounds)))


def _ended_s(buckets: Sequence[Sequence[Leg]], backward_end: float, looks: Sequence[float]) -> tuple[float, float]:
    """Return when the last round between nodes has ended, and the seconds that rounds beside backward cost the core."""
    free, last, core = dict[str, float](), 0.0, 0.0  # free: when each direction of the link is
    waiting = [(legs[0].earliest, bucket_index, 0, legs[0].rounds) for bucket_index, legs in enumerate(buckets)]
    while waiting:
        at = min(waiting)
        waiting.remove(at)
        moment, bucket_index, number, left = at
        leg = buckets[bucket_index][number]
        if left:
            began = max(moment, free.get(leg.direction, 0.0))
            free[leg.direction], hidden = _round(leg, began, backward_end)
            core += hidden * leg.exchange.core_s / leg.rounds
            # The core sees what has ended after the layer of that moment; at once after backward.
            seen = next((look for look in looks if look >= free[leg.direction]), free[leg.direction])
            waiting.append((seen, bucket_index, number, left - 1))
        elif number + 1 < len(buckets[bucket_index]):
            following = buckets[bucket_index][number + 1]
            waiting.append((max(moment, following.earliest), bucket_index, number + 1, following.rounds))
        else:
            last = max(last, moment)
    return last, core


def _round(leg: Leg, began: float, backward_end: float) -> tuple[float, float]:
    """Return when a round has ended, and its share that has travelled beside backward."""
    alone_s = leg.exchange.between_s / leg.rounds
    beside_s, left = leg.exchange.beside * alone_s, backward_end - began
    if left <= 0 or not alone_s:
        return began + alone_s, 0.0
    if beside_s <= left:
        return began + beside_s, 1.0
    return backward_end + (1 - left / beside_s) * alone_s, left / beside_s
