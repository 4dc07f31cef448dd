"""Additive 64-bit keys of random numbers: a pure function of integers, instead of the state of a generator.

A key is made by absorbing integers one after the other:

    state = splitmix(state + number)        (mod 2^64, from state = 0)

Dropout continues from its key in the same way, on arrays: it absorbs the example and then the element. So a random
number depends only on its purpose, never on the rank, the order or the batch in which it is drawn. Initial weights,
dropout and gossip pairs depend on these values, so they never change; the keys of
:mod:`ringtrain.data.batches.keys` combine integers by xor instead, and have other values."""

import hashlib

from ringtrain.splitmix import FIRST as FIRST
from ringtrain.splitmix import GOLDEN as GOLDEN
from ringtrain.splitmix import MASK, splitmix
from ringtrain.splitmix import SECOND as SECOND

# Dropout compares this many top bits of the random number with a whole threshold: no rounding can differ.
DROPOUT_BITS = 24


def additive_key(*numbers: int) -> int:
    """Return the 64-bit key of these integers, in this order; negative ones are taken modulo 2^64."""
    state = 0
    for number in numbers:
        state = splitmix((state + number) & MASK)
    return state


def name_key(name: str) -> int:
    """Return the 64-bit key of a name: the first 8 bytes, little-endian, of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def dropout_threshold(rate: float) -> int:
    """Return the number of DROPOUT_BITS bits below which a random number drops its element."""
    return round(rate * (1 << DROPOUT_BITS))
