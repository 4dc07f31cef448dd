"""Who averages with whom, known beforehand to all: a pure function of (seed, iteration, size).

An iteration's pairs are a matching: a rank is in one pair at most. A pair is (active, passive), one rank of each of two
halves. Pairings come round after a period, in which every pair that there can be meets exactly once; the seed says in
what order.

*An even number of ranks*, 2m: even ranks are active, odd ones passive, always: the graph of all pairs is bipartite. In
turn t the active rank at place a of its half meets the passive one at place a + t, modulo m. The period is m.

*An odd number*, 2m + 1: no two halves are equal, so one rank sits out, and the halves are the m ranks after it and the
m before it on the ring: in turn t rank t sits out, and t + k meets t - k. The period is 2m + 1, and each rank sits out
once in it: the round robin of chess clubs.

Four ranks, and five::

    turn 0   0─1   2─3            turn 0   (0)  1─4  2─3
    turn 1   0─3   2─1            turn 1   (1)  2─0  3─4
                                  turn 2   (2)  3─1  4─0   ...

How far ranks can be apart, if nothing else holds them: by as many iterations as there are ranks. Who has finished an
iteration has met all ranks, or all of the other half, within the last period; they had finished all before their
meeting, and had met all others within the period before that.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018, section 3 (bipartite graphs).
"""

from ringtrain.ops.keys import additive_key


def period(size: int) -> int:
    """After so many iterations every pair has met once."""
    return size if size % 2 else size // 2


def pairing(seed: int, iteration: int, size: int) -> tuple[tuple[int, int], ...]:
    """(active, passive) of each pair of an iteration."""
    turns = period(size)
    turn = sorted(range(turns), key=lambda t: additive_key(seed, t))[iteration % turns]
    if size % 2:
        return tuple(((turn + k) % size, (turn - k) % size) for k in range(1, size // 2 + 1))
    return tuple((a, (a + 2 * turn + 1) % size) for a in range(0, size, 2))


def partners(rank: int, seed: int, size: int) -> list[int | None]:
    """Whom ``rank`` meets in each iteration of a period; None where it sits out."""
    return [_partner(rank, pairing(seed, iteration, size)) for iteration in range(period(size))]


def _partner(rank: int, pairs) -> int | None:
    met = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    return met.get(rank)
