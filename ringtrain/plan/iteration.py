"""The critical path of one iteration of a rank: layers, buckets, and exchanges beside them.

::
    core       forward ─► loss ─► backward fc │ conv2 │ conv1 ─► waits ─► update
                                              ▲ looks ▲ at the exchanges under way
    network                                   bucket 0: round, round ..., bucket 1 ...

A bucket's exchange begins when backward has finished its first layer. What an exchange costs the core (messages within
a node, additions) adds up with the layers. Rounds between nodes travel meanwhile, one bucket's behind another's on the
node's link; a round follows when the core looks, after each layer, and at once where a device has streams of its own
or the core waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.nn.buckets import Bucket
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


def exposed_s(
    backward: BackwardTimes, exchanges: Sequence[ExchangeTime], overlaps: bool, streams: bool = False
) -> float:
    """Return the seconds by which exchanges of the buckets lengthen an iteration. overlaps: whether they begin during
    backward; streams: whether they need no look of the core, as on a device"""
    busy = 0.0 if streams else sum(exchange.busy_s for exchange in exchanges)
    if streams:
        exchanges = [ExchangeTime(0.0, each.seconds, max(1, each.rounds)) for each in exchanges]
    begins = backward.ready if overlaps else [backward.end] * len(exchanges)
    looks = () if streams else backward.looks
    return busy + max(_travelled_s(begins, exchanges, looks) - backward.end, 0.0)


def _travelled_s(begins: Sequence[float], exchanges: Sequence[ExchangeTime], looks: Sequence[float]) -> float:
    """Return when the last round between nodes has ended."""
    link_free, last = 0.0, 0.0
    waiting = [
        (begin, place, min(each.rounds, MOST_ROUNDS))
        for place, (begin, each) in enumerate(zip(begins, exchanges, strict=True))
    ]
    while waiting:
        begin, place, left = min(waiting)
        waiting.remove((begin, place, left))
        if not left:
            last = max(last, begin)
            continue
        each = exchanges[place]
        link_free = max(begin, link_free) + each.between_s / min(each.rounds, MOST_ROUNDS)
        waiting.append((_next_look(link_free, looks), place, left - 1))
    return last


def _next_look(moment: float, looks: Sequence[float]) -> float:
    """Return when the core sees what has ended: after the layer of that moment; at once after backward."""
    return next((look for look in looks if look >= moment), moment)
