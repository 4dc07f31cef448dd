"""In which order buckets start where the next forward pass waits for them.

Backward finishes the highest layers first, and forward needs the lowest first. A link that is given buckets as they
become final has the lowest behind all others. So whenever it is free it takes the lowest that is final::

    final       5     4        3     2     1
    as final    [5──────────][4──────────][3────][2──][1]   forward waits for all of it
    lowest      [5──────────][3────][2──][1][4──────────]   4 travels while forward computes 1, 2 and 3

Which is free when is learnt from the first iterations, on one rank, for all: then the order stands, and is the same on
all ranks whatever their times are.

Source: Jayarajan et al., Priority-based parameter propagation, MLSys 2019.
"""

from collections.abc import Sequence
from statistics import median

from ringtrain.exchange.meter import Meter

LEARNING = 4  # iterations


def learnt_order(nbytes: Sequence[int], meters: Sequence[Meter]) -> list[int]:
    """From the last rounds of all buckets, which started in the order 0, 1, ...: they must have had the same
    number."""
    rounds = list(zip(*(meter.moments for meter in meters), strict=True))
    rate = max(_rate(nbytes, moments) for moments in rounds)
    final_s = [median(moments[place][0] - moments[0][0] for moments in rounds) for place in range(len(nbytes))]
    return lowest_first(final_s, [count / rate for count in nbytes])


def _rate(nbytes: Sequence[int], moments) -> float:
    """Bytes a second that passed in the best stretch of a round: more do not fit through."""
    best = 0.0
    for first in range(len(nbytes)):
        for last in range(first, len(nbytes)):
            seconds = max(ended for _, ended in moments[first : last + 1]) - moments[first][0]
            best = max(best, sum(nbytes[first : last + 1]) / max(seconds, 1e-9))
    return best


def lowest_first(final_s: Sequence[float], travel_s: Sequence[float]) -> list[int]:
    """The order in which a link that carries one bucket at a time takes them, each time the last one that is final.

    final_s:  when each bucket is final
    travel_s: how long it takes
    """
    left, order, now = set(range(len(final_s))), [], 0.0
    while left:
        now = max(now, min(final_s[place] for place in left))
        place = max(place for place in left if final_s[place] <= now)
        order.append(place)
        left.remove(place)
        now += travel_s[place]
    return order
