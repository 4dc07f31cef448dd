"""How long an all-reduce must take at least over messages, by what was calibrated.

The largest of four times, each of which no schedule of messages can go below:

    ceil(log2 p) · alpha            the last contribution reaches the last rank through so many messages
    2(p-1)/p · n · beta             some rank sends that much; beta of the faster class
    2(m-1)/m · n · beta between     some node of m sends that much, over the link that its ranks share
    (p-1)/p · n · gamma             some rank adds that much

Beta inside a node is of all links busy, since they share its memory. Between nodes it is what one node's link was seen
to carry at best, in one direction, whether one pair used it or all: a network that does less when both directions are
busy leaves room that a better schedule may use.

The four are not added: messages, and the additions of what has arrived, may go on at the same time. A transport that
sends no messages (memory that ranks share) may go below.

Source: Chan et al., Collective communication, 2007, section 3; Patarasuk & Yuan 2009.
"""

import math

from ringtrain.bench.calibration import BETWEEN, INSIDE, Calibration


def bound_s(calibration: Calibration, ranks: int, nodes: int, nbytes: int, wire: float = 1.0) -> float:
    """0 for one rank, which need not do anything. ``wire``: what share of the buffer's bytes travels."""
    if ranks == 1:
        return 0.0
    links = calibration.links
    rates = [links[INSIDE].busy_bytes_per_s] if INSIDE in links else []
    rates += [calibration.node_bytes_per_s] if BETWEEN in links else []
    times = [
        math.ceil(math.log2(ranks)) * min(link.alpha_s for link in links.values()),
        2 * (ranks - 1) / ranks * nbytes * wire / max(rates),
        (ranks - 1) / ranks * nbytes * calibration.gamma_s_per_byte,
    ]
    if BETWEEN in links:
        times.append(2 * (nodes - 1) / nodes * nbytes * wire / calibration.node_bytes_per_s)
    return max(times)
