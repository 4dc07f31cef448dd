"""The graphs of gossip: whose weights a rank takes in each turn, with its own in equal shares; known to all ranks.

*ring*: both neighbours. *exponential*: the rank 2^t before it, in ceil(log2 p) turns. *pairs*: one partner, by a pure
function of (seed, iteration, size).

The pairs of an iteration are a matching: a rank is in one pair at most. A pair is (active, passive), one rank of each
of two halves. The pairings of a period, in an order that the seed gives, contain every possible pair exactly once.

*An even number of ranks*, 2m: even ranks are active, odd ones passive, always: the graph of all pairs is bipartite. In
turn t the active rank at place a of its half meets the passive one at place a + t, modulo m. The period is m.

*An odd number*, 2m + 1: one rank is left out, and the halves are the m ranks after it and the m before it on the ring:
in turn t rank t is left out, and t + k meets t - k, a round robin. The period is 2m + 1.

Four ranks, and five::

    turn 0   0─1   2─3            turn 0   (0)  1─4  2─3
    turn 1   0─3   2─1            turn 1   (1)  2─0  3─4
                                  turn 2   (2)  3─1  4─0   ...

Ranks can be apart by as many iterations as there are ranks: within the last period a rank has met all ranks, or all of
the other half, and these had met all others within the period before.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018, section 3 (bipartite graphs);
Assran, Loizou, Ballas & Rabbat, Stochastic Gradient Push for distributed deep learning, ICML 2019 (exponential graph).
"""

from collections.abc import Iterable
from typing import NamedTuple

from ringtrain.ops.keys import additive_key

PAIRS, RING = "pairs", "ring"


class Turn(NamedTuple):
    """``takes``: the ranks of whose weights this rank takes the mean, itself among them, in their order; ``gives``: the
    other ranks that take its weights."""

    takes: tuple[int, ...]
    gives: tuple[int, ...]


def make_turns(name: str, rank: int, size: int, seed: int) -> list[Turn]:
    """Return the turns of a rank, again and again, of the graph of this name."""
    if name == PAIRS:
        met = [() if each is None else (each,) for each in partners(rank, seed, size)]
        return [_turn(rank, each, each) for each in met]
    if name == RING:
        both = (rank - 1) % size, (rank + 1) % size
        return [_turn(rank, both, both)]
    steps = [1 << turn for turn in range(max(1, (size - 1).bit_length()))]
    return [_turn(rank, [(rank - step) % size], [(rank + step) % size]) for step in steps]


def _turn(rank: int, sources: Iterable[int], targets: Iterable[int]) -> Turn:
    return Turn(tuple(sorted({rank, *sources})), tuple({*targets} - {rank}))


def period(size: int) -> int:
    """Return the number of iterations in which every pair meets once."""
    return size if size % 2 else size // 2


def pairing(seed: int, iteration: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return (active, passive) of each pair of an iteration."""
    turns = period(size)
    turn = sorted(range(turns), key=lambda t: additive_key(seed, t))[iteration % turns]
    if size % 2:
        return tuple(((turn + k) % size, (turn - k) % size) for k in range(1, size // 2 + 1))
    return tuple((a, (a + 2 * turn + 1) % size) for a in range(0, size, 2))


def partners(rank: int, seed: int, size: int) -> list[int | None]:
    """Return the partner of ``rank`` in each iteration of a period; None where it is left out."""
    pairings = (pairing(seed, iteration, size) for iteration in range(period(size)))
    return [next((a + b - rank for a, b in pairs if rank in (a, b)), None) for pairs in pairings]
